"""Recording what is launched, to be replayed as one CUDA graph."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")

# Held while a recording is under way. Whoever waits for the whole device takes it too: that would end the recording in an error.
UNDER_WAY = threading.RLock()
_WARM = 2  # runs before a recording, which make what is made once


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any = None) -> Iterator[None]:
    """Record what is launched inside into `graph`, on a stream of its own, without running it.

    pool: of another recording, whose memory it may use again: each then overwrites what the others left.
    One at a time, and nothing is collected meanwhile: garbage may hold page-locked memory, whose end waits for the device.
    """
    with UNDER_WAY:
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                yield
        finally:
            if collecting:
                gc.enable()


class Recorded(Generic[T]):
    """Work that was recorded once and is replayed with one launch. It must read and write fixed tensors and wait for nothing.

    after: another recording whose memory this one may use again, where nobody reads what that one left.
    """

    def __init__(self, work: Callable[[], T], device: torch.device, after: Recorded[Any] | None = None) -> None:
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.random.fork_rng([device]):  # what is tried out here draws no numbers of the run
            with torch.cuda.stream(stream):
                for _ in range(_WARM):
                    work()
            torch.cuda.current_stream(device).wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with recording(self.graph, stream, None if after is None else after.graph.pool()):
                self.result = work()

    def replay(self) -> T:
        """Run it. What `work` returned is overwritten, in the same memory."""
        self.graph.replay()
        return self.result
