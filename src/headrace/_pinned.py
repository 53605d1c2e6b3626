"""Host memory that a GPU may read: page-locked where it lies, without a copy."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

_READ_ONLY = 8  # cudaHostRegisterReadOnly: for memory maps that may not be written


def pin_in_place(tensor: Tensor, owner: Any) -> bool:
    """Page-lock the memory of a CPU tensor until `owner` is collected; False where the driver refuses this memory."""
    if tensor.numel() == 0 or tensor.is_pinned():
        return True
    runtime = torch.cuda.cudart()
    for flags in (0, _READ_ONLY):
        if int(runtime.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, flags)) == 0:
            weakref.finalize(owner, _unpin, tensor)  # which also keeps the memory until then
            return True
    return False


def _unpin(tensor: Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
