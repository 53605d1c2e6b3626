"""`Layout`: arrays of a batch side by side in one piece of memory, so that one copy brings them to a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

_ALIGNED = 16


class Layout:
    """Where arrays of one dimension lie in a piece of memory: `fields` has the type and the length of each.

    >>> import torch
    >>> layout = Layout({"ids": (torch.int64, 2), "known": (torch.bool, 1)})
    >>> memory = layout.empty(torch.device("cpu"))
    >>> layout.tensors(memory)["ids"].fill_(7).tolist(), memory.numel()
    ([7, 7], 32)
    """

    def __init__(self, fields: Mapping[str, tuple[torch.dtype, int]]) -> None:
        self.fields: dict[str, tuple[torch.dtype, int, int]] = {}
        self.nbytes = 0
        for name, (dtype, length) in fields.items():
            self.fields[name] = dtype, length, self.nbytes
            self.nbytes += -(-length * dtype.itemsize // _ALIGNED) * _ALIGNED

    def empty(self, target: torch.device) -> Tensor:
        """Host memory for all of them: page-locked where a GPU is to copy it.  # -> [bytes]"""
        return torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=target.type == "cuda")

    def tensors(self, memory: Tensor) -> dict[str, Tensor]:
        """The arrays in a piece of memory, wherever it is."""
        return {
            name: memory[begin : begin + length * dtype.itemsize].view(dtype)
            for name, (dtype, length, begin) in self.fields.items()
        }

    def arrays(self, memory: Tensor) -> dict[str, np.ndarray[Any, Any]]:
        """The same of host memory, as arrays of numpy."""
        raw = memory.numpy()
        return {
            name: raw[begin : begin + length * dtype.itemsize].view(str(dtype).removeprefix("torch."))
            for name, (dtype, length, begin) in self.fields.items()
        }


def moved(named: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Arrays of the host on a device, by one copy that is not waited for."""
    layout = Layout({name: (value.dtype, len(value)) for name, value in named.items()})
    memory = layout.empty(device)
    for name, array in layout.arrays(memory).items():
        array[:] = named[name].numpy()
    return layout.tensors(memory.to(device, non_blocking=device.type != "cpu"))
