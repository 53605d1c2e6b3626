"""Arrays between the user, torch and the native module: always by reference, never by copy where it can be helped."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

_here = threading.local()


@contextmanager
def one_thread() -> Iterator[None]:
    """Kernels that are not told how many threads to use take one here, in the calling thread."""
    before, _here.one = getattr(_here, "one", False), True
    try:
        yield
    finally:
        _here.one = before


def thread_count(threads: int | None) -> int:
    """The number of threads to use: as asked for, or every processor this process may run on (within `one_thread`, one)."""
    if threads is None:
        if getattr(_here, "one", False):
            return 1
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    if threads > 1024:
        raise ValueError(f"threads must be at most 1024, not {threads}")
    return threads


def thread_argument(threads: int | None) -> int:
    """`threads` as a custom op takes it: 0 stands for all, which are counted when the op runs, not when it is traced."""
    return 0 if threads is None else thread_count(threads)


def as_tensor(array: Any, name: str) -> Tensor:
    """A tensor over `array` (torch, numpy or a sequence), contiguous and on the CPU."""
    if isinstance(array, np.ndarray):
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # torch computes little with these
            array = array.astype(np.int64)
        with warnings.catch_warnings():  # a read-only array (a memory map) is fine: nothing here writes to it
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.from_numpy(np.ascontiguousarray(array))
    else:
        tensor = torch.as_tensor(array)
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} must be on the CPU, not on {tensor.device}: call .cpu() on it")
    return tensor.detach().contiguous()


def as_ids(array: Any, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
    """A one-dimensional tensor of ids on the CPU: int32 or int64 as given, other integers widened."""
    return _ids(as_tensor(array, name), name, dtype)


def as_ids_near(array: Any, name: str, device: torch.device) -> Tensor:
    """The same where the ids may be on `device` already: they stay there, or on the CPU."""
    if isinstance(array, Tensor) and array.device.type != "cpu" and array.device == device:
        return _ids(array.detach().contiguous(), name, None)
    return as_ids(array, name)


def _ids(tensor: Tensor, name: str, dtype: torch.dtype | None) -> Tensor:
    if tensor.dim() != 1:
        raise ValueError(f"{name} must have one dimension, not shape {tuple(tensor.shape)}")
    if tensor.numel() == 0 and tensor.dtype in (torch.float32, torch.float64):  # what an empty list becomes
        tensor = tensor.long()
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(f"{name} must hold integers, not {tensor.dtype}")
    if dtype is not None:
        return tensor.to(dtype)
    return tensor if tensor.dtype in (torch.int32, torch.int64) else tensor.long()


def as_times(array: Any, name: str) -> Tensor:
    """A one-dimensional tensor of times on the CPU: int64 or float64, to which narrower types are widened."""
    return _times(as_tensor(array, name), name)


def as_times_near(array: Any, name: str, device: torch.device) -> Tensor:
    """The same where the times may be on `device` already: they stay there, or on the CPU."""
    if isinstance(array, Tensor) and array.device.type != "cpu" and array.device == device:
        return _times(array.detach().contiguous(), name)
    return as_times(array, name)


def _times(tensor: Tensor, name: str) -> Tensor:
    if tensor.dim() != 1:
        raise ValueError(f"{name} must have one dimension, not shape {tuple(tensor.shape)}")
    if tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(f"{name} must hold integers or real numbers, not {tensor.dtype}")
    return tensor.to(torch.float64 if tensor.dtype.is_floating_point else torch.int64)


def check_apart(out: Tensor, **inputs: Tensor | None) -> None:
    """ValueError if `out` shares memory with an input: a kernel would read what it has written.

    For contiguous tensors. The native module does the same for its own arguments.
    """
    begin = out.data_ptr()
    end = begin + out.nbytes
    for name, tensor in inputs.items():
        if tensor is None or tensor.device != out.device or not tensor.nbytes:
            continue
        first = tensor.data_ptr()
        if begin < first + tensor.nbytes and first < end:
            raise ValueError(f"out overlaps {name} in memory: give it memory of its own")


def first_outside(ids: Tensor, low: int, high: int) -> int:
    """The position of the first id that is not in [low, high)."""
    return int(((ids < low) | (ids >= high)).nonzero()[0])


def check_ids(ids: Tensor, count: int, *, name: str = "ids", of: str = "rows") -> None:
    """IndexError unless every id is from 0 to `count` - 1. For ids on a GPU the host waits."""
    if len(ids) == 0:
        return
    low, high = torch.stack(ids.aminmax()).tolist()
    if low < 0 or high >= count:
        at = first_outside(ids, 0, count)
        raise IndexError(f"{name} from {low} to {high} for {count} {of}: {name}[{at}] is {int(ids[at])}, which is out of range")


def signed(word: int) -> int:
    """A word of 64 bits as torch, numpy and Triton hold it."""
    return word - 2**64 if word >= 2**63 else word
