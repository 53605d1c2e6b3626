"""Training: recipes, evaluation, checkpoints, run logs and reports."""

from headrace.train.checkpoint import CheckpointError
from headrace.train.inference.export import Exported, export
from headrace.train.inference.infer import infer
from headrace.train.inference.neighbors import Neighbor, Neighbors, neighbors
from headrace.train.inference.ranking import Ranking, RankMetrics, rank
from headrace.train.links.link import LinkResult, link
from headrace.train.links.options import LinkOptions
from headrace.train.nodes.node import NodeResult, node
from headrace.train.options import NodeOptions, RunOptions
from headrace.train.run import Run
from headrace.train.watch import StepEvent, Watcher

__all__ = [
    "CheckpointError",
    "Exported",
    "LinkOptions",
    "LinkResult",
    "Neighbor",
    "Neighbors",
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
    "neighbors",
    "node",
    "rank",
]
