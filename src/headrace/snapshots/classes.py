"""`TwoWorkers`: groups on two threads, of which one sums over neighbors while the other multiplies.

A thread holds the class "dense" but for its sums, where it gives that up for the class "graph": two tasks of one class never run
together, and a group's own order stays. Gradients do the same on their way back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor

from headrace.nn.neighbor_sum import between

T = TypeVar("T")


class Classes:
    """A lock for each class of operators, and the time that each was held."""

    def __init__(self) -> None:
        self._locks = {"graph": threading.Lock(), "dense": threading.Lock()}
        self._own = threading.local()
        self.seconds = {"graph": 0.0, "dense": 0.0}

    def take(self, kind: str) -> None:
        """Hold this class alone; the one held before is given up."""
        self.give()
        self._locks[kind].acquire()
        self._own.kind, self._own.begin = kind, perf_counter()

    def give(self) -> None:
        """Hold no class."""
        kind = getattr(self._own, "kind", None)
        if kind is not None:
            self.seconds[kind] += perf_counter() - self._own.begin
            self._own.kind = None
            self._locks[kind].release()

    def __call__(self, x: Tensor, work: Callable[[Tensor], Tensor]) -> Tensor:
        """A sum: done as "graph", forward and back, between operators that are "dense"."""
        out: Tensor = _Switch.apply(work(_Switch.apply(x, self, "graph", "dense")), self, "dense", "graph")  # type: ignore[no-untyped-call]
        return out


class _Switch(torch.autograd.Function):
    """Takes one class on the way forward, another on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, classes: Classes, forward: str, back: str) -> Tensor:
        ctx.classes, ctx.back = classes, back
        classes.take(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.classes.take(ctx.back)
        return gradients[0], None, None, None


class TwoWorkers:
    """Runs pieces of work on two threads. At most two are under way, and results come in the order of the pieces."""

    def __init__(self) -> None:
        self.classes = Classes()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="snapshots")

    def start(self, pieces: Sequence[Callable[[], T]]) -> list[Future[T]]:
        """Begin; each future is a piece's result."""
        return [self._pool.submit(self._run, piece) for piece in pieces]

    def _run(self, piece: Callable[[], T]) -> T:
        with between(self.classes):
            self.classes.take("dense")
            try:
                return piece()
            finally:
                self.classes.give()

    def close(self) -> None:
        """End the threads, after what is under way."""
        self._pool.shutdown(wait=True, cancel_futures=True)
