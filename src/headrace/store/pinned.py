"""Buffers in pinned host memory for rows on their way to a GPU."""

from __future__ import annotations

import threading

import torch
from torch import Tensor


class Staging:
    """A few pinned buffers, each used again when the copy out of it is done; `take` waits for one if all are under way."""

    def __init__(self, size: int, *, most: int = 4) -> None:
        self._free = threading.Semaphore(most)
        self._lock = threading.Lock()
        self._idle: list[tuple[Tensor, torch.cuda.Event | None]] = [(_pinned(size), None)]

    def take(self, size: int) -> Tensor:  # -> [at least size], uint8
        self._free.acquire()
        with self._lock:
            buffer, copied = self._idle.pop(0) if self._idle else (_pinned(size), None)
        if copied is not None:
            copied.synchronize()
        return buffer if len(buffer) >= size else _pinned(size + size // 4)

    def give(self, buffer: Tensor) -> None:
        """The buffer is free once what the current stream was told up to now is done."""
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        with self._lock:
            self._idle.append((buffer, copied))
        self._free.release()


def _pinned(size: int) -> Tensor:
    return torch.empty(max(size, 1), dtype=torch.uint8, pin_memory=True)
