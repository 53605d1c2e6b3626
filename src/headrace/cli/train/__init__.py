"""`headrace train`: a file per task around `train_task`."""

import typer

from headrace.cli.train.link import link
from headrace.cli.train.node import node, run_node
from headrace.cli.train.snapshot import snapshot
from headrace.cli.train.task import DATASET, make_watcher, short_name
from headrace.cli.train.temporal import temporal

__all__ = ["DATASET", "make_watcher", "run_node", "short_name", "train"]

train = typer.Typer(name="train", help="Train a model.", no_args_is_help=True)
train.command("node")(node)
train.command("link")(link)
train.command("temporal")(temporal)
train.command("snapshot")(snapshot)
