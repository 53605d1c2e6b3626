"""Recording what is launched, to be replayed as one CUDA graph."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Held while a recording is under way. Whoever waits for the whole device takes it too: that would end the recording in an error.
UNDER_WAY = threading.RLock()


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
