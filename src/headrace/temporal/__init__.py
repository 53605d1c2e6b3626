"""Event streams in training: schedules, node memory, prepared batches, heuristics. Imports nothing of the training loop."""

from headrace.temporal.batch import EventBatch
from headrace.temporal.batches import Asked, EventBatches, cut_events
from headrace.temporal.copies import Copies
from headrace.temporal.joint import Events, JointBatch, JointEvents, Room
from headrace.temporal.lanes import LaneMemory
from headrace.temporal.memory import NodeMemory, Operation
from headrace.temporal.prepared import PreparedBatches
from headrace.temporal.schedule import Holder, Schedule, Turn, parse_parallel, schedule
from headrace.temporal.trainers import deal_trainers

__all__ = [
    "Asked",
    "Copies",
    "EventBatch",
    "EventBatches",
    "Events",
    "Holder",
    "JointBatch",
    "JointEvents",
    "LaneMemory",
    "NodeMemory",
    "Operation",
    "PreparedBatches",
    "Room",
    "Schedule",
    "Turn",
    "cut_events",
    "deal_trainers",
    "parse_parallel",
    "schedule",
]
