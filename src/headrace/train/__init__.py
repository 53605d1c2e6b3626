"""Training: recipes, evaluation, checkpoints, run logs and reports."""

from headrace.train.checkpoint import CheckpointError
from headrace.train.export import Exported, export
from headrace.train.infer import infer
from headrace.train.link import LinkResult, link
from headrace.train.link_options import LinkOptions
from headrace.train.neighbours import Neighbour, Neighbours, neighbours
from headrace.train.node import NodeResult, node
from headrace.train.options import NodeOptions, RunOptions
from headrace.train.ranking import Ranking, RankMetrics, rank
from headrace.train.run import Run
from headrace.train.watch import StepEvent, Watcher

__all__ = [
    "CheckpointError",
    "Exported",
    "LinkOptions",
    "LinkResult",
    "Neighbour",
    "Neighbours",
    "NodeOptions",
    "NodeResult",
    "RankMetrics",
    "Ranking",
    "Run",
    "RunOptions",
    "StepEvent",
    "Watcher",
    "export",
    "infer",
    "link",
    "neighbours",
    "node",
    "rank",
]
