"""GPU rows of one process, read by another: CUDA IPC, so nothing is copied."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

_DEVICE = list(inspect.signature(rebuild_cuda_tensor).parameters).index("storage_device")


@dataclass(frozen=True)
class DeviceRowsHandle:
    """What another process needs to open GPU rows. Picklable; send it by a queue, or `torch.distributed.all_gather_object`."""

    shape: tuple[int, ...]
    dtype: str
    device: int
    device_uuid: str  # a process may number GPUs differently (CUDA_VISIBLE_DEVICES)
    tickets: tuple[tuple[Any, ...], ...]  # one a reader: torch counts how often each is opened


def share_device_rows(rows: Tensor, *, readers: int = 1) -> DeviceRowsHandle:
    """A handle by which up to `readers` other processes of this machine open `rows`, a tensor on a GPU.

    The owner must keep `rows` until the readers have let go. Each reader opens its own ticket of the handle.
    """
    if rows.device.type != "cuda":
        raise ValueError(f"rows must be on a GPU to be shared by CUDA IPC, not on {rows.device}: for host rows use SharedRows")
    if readers < 1:
        raise ValueError(f"readers must be at least 1, not {readers}")
    if rows.requires_grad:
        raise ValueError("rows require a gradient, which cannot follow them to another process: share rows.detach()")
    try:
        tickets = tuple(reduce_tensor(rows)[1] for _ in range(readers))  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise RuntimeError(
            f"CUDA cannot export this memory ({error}). It takes Linux, and memory of torch's plain allocator: "
            "PYTORCH_CUDA_ALLOC_CONF must not say expandable_segments:True or backend:cudaMallocAsync"
        ) from error
    return DeviceRowsHandle(tuple(rows.shape), str(rows.dtype), rows.device.index, device_uuid(rows.device), tickets)


def open_device_rows(handle: DeviceRowsHandle, *, reader: int = 0, device: torch.device | None = None) -> Tensor:
    """The rows behind `handle`. `reader` (0, 1, ... `readers` - 1) must differ between processes.

    `device` is the GPU that reads them: they are mapped for it, over the link between peers if they lie on another, and the tensor
    says it is there. By default it is the GPU where they lie.
    """
    if not 0 <= reader < len(handle.tickets):
        raise ValueError(f"reader {reader} of a handle for {len(handle.tickets)}: pass readers= to share_device_rows")
    if not torch.cuda.is_available():
        raise RuntimeError("opening GPU rows of another process needs a GPU that torch sees in this one")
    gpus = [index for index in range(torch.cuda.device_count()) if device_uuid(torch.device("cuda", index)) == handle.device_uuid]
    if not gpus:
        raise RuntimeError(
            f"the rows are on GPU {handle.device_uuid}, which this process does not see: let CUDA_VISIBLE_DEVICES name it too"
        )
    ticket = list(handle.tickets[reader])
    ticket[_DEVICE] = gpus[0] if device is None else device.index
    try:
        rows: Tensor = rebuild_cuda_tensor(*ticket)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise RuntimeError(
            f"the rows of another process could not be opened ({error}): it may have ended or freed them, or the system may not "
            "allow CUDA IPC between the two (containers must share the IPC namespace)"
        ) from error
    return rows


def device_uuid(device: torch.device) -> str:
    """What a GPU is called in every process, however they number them."""
    return str(torch.cuda.get_device_properties(device).uuid)
