"""Training: one loop for every task, the tasks, exact inference, run directories and reports."""

from headrace.train.checkpoint import CheckpointError
from headrace.train.events.event import TemporalResult, temporal
from headrace.train.events.options import TemporalOptions
from headrace.train.fit import Setup, fit
from headrace.train.inference.export import Exported, export
from headrace.train.inference.layerwise.infer import infer
from headrace.train.inference.neighbors import Neighbor, Neighbors, neighbors
from headrace.train.inference.ranking import Ranking, RankMetrics, rank
from headrace.train.links.link import LinkResult, link
from headrace.train.links.options import LinkOptions
from headrace.train.loop import Trainer
from headrace.train.measure import Measure
from headrace.train.nodes.node import NodeResult, node
from headrace.train.nodes.options import NodeOptions
from headrace.train.options import LoopOptions, RunOptions
from headrace.train.recipe import Recipe, Step
from headrace.train.run import Run
from headrace.train.snapshots.options import SnapshotOptions
from headrace.train.snapshots.snapshot import SnapshotResult, snapshot
from headrace.train.watching.clock import Clock
from headrace.train.watching.watch import StepEvent, Watcher

__all__ = [
    "CheckpointError",
    "Clock",
    "Exported",
    "LinkOptions",
    "LinkResult",
    "LoopOptions",
    "Measure",
    "Neighbor",
    "Neighbors",
    "NodeOptions",
    "NodeResult",
    "RankMetrics",
    "Ranking",
    "Recipe",
    "Run",
    "RunOptions",
    "Setup",
    "SnapshotOptions",
    "SnapshotResult",
    "Step",
    "StepEvent",
    "TemporalOptions",
    "TemporalResult",
    "Trainer",
    "Watcher",
    "export",
    "fit",
    "infer",
    "link",
    "neighbors",
    "node",
    "rank",
    "snapshot",
    "temporal",
]
