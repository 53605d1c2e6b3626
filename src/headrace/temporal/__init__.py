"""Event streams in training: schedules, node memory, prepared batches, heuristics. Imports nothing of the training loop."""

from headrace.temporal.batches import EventBatch, EventBatches, cut_events
from headrace.temporal.memory import NodeMemory, Operation
from headrace.temporal.prepared import PreparedBatches
from headrace.temporal.schedule import Schedule, Turn, parse_parallel, schedule

__all__ = [
    "EventBatch",
    "EventBatches",
    "NodeMemory",
    "Operation",
    "PreparedBatches",
    "Schedule",
    "Turn",
    "cut_events",
    "parse_parallel",
    "schedule",
]
