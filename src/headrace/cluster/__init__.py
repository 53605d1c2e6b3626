"""Graphs and features that are split over ranks: who holds what, what is sent in a step, and layers computed by all of them."""

from headrace.cluster.batches import FetchedBatches, OwnBatches, PushPullBatches, Redrawn, RoundBatches, TeamShard, first_layer
from headrace.cluster.grid import Grid
from headrace.cluster.partial import Partial, Pushed
from headrace.cluster.push_pull import Drawn, PushPull
from headrace.cluster.rounds import Round, may_begin, rounds_of
from headrace.cluster.team import Team

__all__ = [
    "Drawn",
    "FetchedBatches",
    "Grid",
    "OwnBatches",
    "Partial",
    "PushPull",
    "PushPullBatches",
    "Pushed",
    "Redrawn",
    "Round",
    "RoundBatches",
    "Team",
    "TeamShard",
    "first_layer",
    "may_begin",
    "rounds_of",
]
