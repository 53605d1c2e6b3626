"""Host memory that a GPU reads: pages registered in place, and buffers on their way to it."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import Tensor

_PORTABLE_AND_MAPPED = 3  # readable by every GPU of the process, at the address it has on the host


def pin(memory: Tensor, owner: object, device: torch.device) -> None:
    """Register the pages of a CPU tensor with CUDA until `owner` dies.

    Memory from torch's own pinned allocator would do, but it rounds sizes up to powers of two, and of a large table that may be
    half the machine. Register after the pages were written: threads touch them faster than the driver does.
    """
    with torch.cuda.device(device):
        code = 0 if memory.nbytes == 0 else int(_runtime().cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE_AND_MAPPED))
    if code:
        raise RuntimeError(
            f"CUDA cannot pin {memory.nbytes:,} bytes of host memory (error {code}): "
            "keep fewer rows there (host=) and the rest on disk"
        )
    weakref.finalize(owner, _unpin, memory, device)


def _unpin(memory: Tensor, device: torch.device) -> None:
    torch.cuda.synchronize(device)  # a kernel may still read it
    if memory.nbytes:
        _runtime().cudaHostUnregister(memory.data_ptr())


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


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
