"""Graphs and features that are split over ranks: who holds what, what is sent in a step, and layers computed by all of them."""

from headrace.cluster.batches import FetchedBatches, OwnBatches, PushPullBatches, Redrawn, RoundBatches, TeamShard
from headrace.cluster.elastic import LambdaExecutor, ParameterStore, RayExecutor, Task, ThreadExecutor, run_task
from headrace.cluster.grid import Grid
from headrace.cluster.parallelise import first_layer, parallelise
from headrace.cluster.partial import Partial, Pushed
from headrace.cluster.parts.cut import cut
from headrace.cluster.parts.estimate import Estimate, estimate
from headrace.cluster.parts.part import Part, is_partition
from headrace.cluster.parts.partition import partition
from headrace.cluster.parts.summary import PartitionSummary, Share
from headrace.cluster.push_pull import Drawn, PushPull
from headrace.cluster.rounds import Round, may_begin, rounds_of
from headrace.cluster.team import Team

__all__ = [
    "Drawn",
    "Estimate",
    "FetchedBatches",
    "Grid",
    "LambdaExecutor",
    "OwnBatches",
    "ParameterStore",
    "Part",
    "Partial",
    "PartitionSummary",
    "PushPull",
    "PushPullBatches",
    "Pushed",
    "RayExecutor",
    "Redrawn",
    "Round",
    "RoundBatches",
    "Share",
    "Task",
    "Team",
    "TeamShard",
    "ThreadExecutor",
    "cut",
    "estimate",
    "first_layer",
    "is_partition",
    "may_begin",
    "parallelise",
    "partition",
    "rounds_of",
    "run_task",
]
