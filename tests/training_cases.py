"""What the tests of training share: kinds of layers, small options, runs that are stopped, and what of a run must repeat."""

import os
import signal

import torch

from headrace.train import NodeOptions, Run, Watcher

MODELS = ("sage", "gcn", "gin", "gat")
SMALL = {"hidden": 16, "heads": 4, "fanout": (5, 5), "batch_size": 64, "lr": 0.01, "threads": 1}
TIMES = {"seconds", "epoch_seconds", "train_seconds", "time", "throughput", "memory", "stages", "cache", "ranks"}


def small(**changes) -> NodeOptions:
    return NodeOptions(**{**SMALL, **changes})


class StoppedError(Exception):
    """The process is gone, as far as a test is concerned: nothing is written after it."""


class StopAt(Watcher):
    """Does something at the n-th event of a kind: raises `StoppedError`, or sends this process a signal, as Ctrl-C does."""

    def __init__(self, kind: str, number: int, sent: int | None = None) -> None:
        self.kind, self.number, self.sent = kind, number, sent

    def _see(self, kind: str) -> None:
        if kind == self.kind:
            self.number -= 1
            if self.number == 0:
                if self.sent is None:
                    raise StoppedError
                os.kill(os.getpid(), self.sent)

    def begin(self, header, **where):
        self._see("begin")

    def step(self, event, clock):
        self._see("step")

    def validating(self, done, total):
        self._see("validating")

    def epoch(self, facts):
        self._see("epoch")

    def end(self, facts):
        self._see("end")


def ctrl_c_at(kind: str, number: int) -> StopAt:
    return StopAt(kind, number, signal.SIGINT)


def lasting(lines: list[dict]) -> list[dict]:
    """Log lines without what differs from one run to the next: times and memory."""
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def assert_same_weights(found, wanted) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert torch.equal(found[name], wanted[name]), name


def assert_same_run(found, wanted) -> None:
    """Two run directories hold the same weights, to the bit, and the same log."""
    found, wanted = Run(found), Run(wanted)
    for name in ("last", "best"):
        assert_same_weights(found.load_checkpoint(name)["model"], wanted.load_checkpoint(name)["model"])
    assert lasting(found.metrics()) == lasting(wanted.metrics())
    assert found.result()["test_accuracy"] == wanted.result()["test_accuracy"]
    assert found.result()["val_accuracy"] == wanted.result()["val_accuracy"]
    assert not list(found.path.rglob("*.new"))
