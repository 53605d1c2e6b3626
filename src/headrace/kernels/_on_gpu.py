"""Triton kernels are imported when they are first called: a machine without a GPU needs none, and may lack Triton."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import torch


def on_gpu(name: str) -> Any:
    """The module of Triton kernels of this name, such as `_gather.triton_gather`."""
    try:
        return import_module(f"headrace.kernels.{name}")
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] == "triton":
            raise RuntimeError("kernels of a GPU need Triton, which is not installed: pip install triton") from None
        raise


def launching(device: torch.device) -> AbstractContextManager[object]:
    """Make the device of the tensors the current one, which a launch goes to."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
