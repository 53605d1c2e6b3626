"""Training: recipes, evaluation, checkpoints, run logs and reports."""

from headrace.train.checkpoint import CheckpointError
from headrace.train.infer import infer
from headrace.train.node import NodeResult, node
from headrace.train.options import NodeOptions, RunOptions
from headrace.train.run import Run
from headrace.train.watch import StepEvent, Watcher

__all__ = ["CheckpointError", "NodeOptions", "NodeResult", "Run", "RunOptions", "StepEvent", "Watcher", "infer", "node"]
