"""Recording what is launched, to be replayed as one CUDA graph."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Held while a recording is under way. Whoever waits for the whole device takes it too: that would end the recording in an error.
UNDER_WAY = threading.RLock()


@contextmanager
def recording(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> Iterator[None]:
    """What is launched inside goes to `graph`, on a stream of its own, and does not run.

    One at a time, and nothing is collected meanwhile: garbage may hold page-locked memory, whose end waits for the device.
    """
    with UNDER_WAY:
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                yield
        finally:
            if collecting:
                gc.enable()
