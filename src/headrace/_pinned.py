"""Host memory that a GPU may read: page-locked where it lies, without a copy."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace._capture import UNDER_WAY

_PORTABLE_AND_MAPPED = 1 | 2  # of cudaHostRegister: for every GPU of the process, at the address it has on the host
_READ_ONLY = 8  # for memory maps that may not be written


class PinError(RuntimeError):
    """The driver does not page-lock this memory."""


def pin_in_place(
    memory: Tensor, owner: object, *, device: torch.device | None = None, remedy: str = "pin less"
) -> weakref.finalize[Any, Any]:
    """Page-lock the memory of a contiguous CPU tensor, and map it for all GPUs, until `owner` is collected.

    Memory from torch's own pinned allocator would do too, but it rounds sizes up to powers of two, and of a large table that may
    be half the machine. Register after the pages were written: threads touch them faster than the driver does. What is returned
    undoes it when it is called, before `owner` goes; the memory is kept until then. Where it has several owners (graphs that share
    arrays) the last one's end counts. A forked child undoes nothing, for the registration is not its own. `device` is the GPU to
    ask (default: the current one), which is waited for before the end, since a kernel may still read; `remedy` ends the error
    that says why not.
    """
    lock = _locks(memory).get(memory.data_ptr())
    if lock is not None and lock.memory.nbytes >= memory.nbytes:
        lock.owners += 1
        return weakref.finalize(owner, _let_go, lock)
    if memory.nbytes == 0 or memory.is_pinned():
        return weakref.finalize(owner, _nothing)
    with torch.cuda.device(device):
        runtime = _runtime()
        for flags in (_PORTABLE_AND_MAPPED, _PORTABLE_AND_MAPPED | _READ_ONLY):
            code = int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, flags))
            if code == 0:
                lock = _locks(memory)[memory.data_ptr()] = _Lock(os.getpid(), memory, device)
                return weakref.finalize(owner, _let_go, lock)
            _forget_refusal()
    raise PinError(
        f"CUDA refused to page-lock {memory.nbytes:,} bytes of host memory (error {code}): the limit of locked memory (ulimit -l) "
        f"or of the container may be too low; {remedy}"
    )


@dataclass(eq=False)
class _Lock:
    """Memory that is registered with the driver, once however many owners there are."""

    process: int
    memory: Tensor
    device: torch.device | None
    owners: int = 1


def _locks(memory: Tensor) -> weakref.WeakValueDictionary[int, _Lock]:
    """The locks on the storage under a tensor, by address. They belong to the storage, since graphs may share arrays."""
    storage: Any = memory.untyped_storage()
    if not hasattr(storage, "_headrace_locks"):
        storage._headrace_locks = weakref.WeakValueDictionary()
    locks: weakref.WeakValueDictionary[int, _Lock] = storage._headrace_locks
    return locks


def _let_go(lock: _Lock) -> None:
    lock.owners -= 1
    if lock.owners > 0 or os.getpid() != lock.process:
        return
    _locks(lock.memory).pop(lock.memory.data_ptr(), None)
    with UNDER_WAY:
        with suppress(RuntimeError):  # of an earlier kernel, which is reported elsewhere: nothing reads any more
            torch.cuda.synchronize(lock.device)
        _runtime().cudaHostUnregister(lock.memory.data_ptr())


def _forget_refusal() -> None:
    """CUDA keeps its last error until somebody asks, and torch asks when it launches a kernel: let it be this one that fails."""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda")


def _nothing() -> None:
    """There is nothing to undo."""


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
