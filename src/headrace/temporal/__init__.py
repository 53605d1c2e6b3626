"""Event streams in training: schedules, node memory, prepared batches, heuristics. Imports nothing of the training loop."""

from headrace.temporal.batches import EventBatch, EventBatches, cut_events
from headrace.temporal.copies import Copies
from headrace.temporal.memory import NodeMemory, Operation
from headrace.temporal.prepared import PreparedBatches
from headrace.temporal.schedule import Holder, Schedule, Turn, parse_parallel, schedule
from headrace.temporal.trainers import deal_trainers

__all__ = [
    "Copies",
    "EventBatch",
    "EventBatches",
    "Holder",
    "NodeMemory",
    "Operation",
    "PreparedBatches",
    "Schedule",
    "Turn",
    "cut_events",
    "deal_trainers",
    "parse_parallel",
    "schedule",
]
