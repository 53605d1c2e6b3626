"""Kernels of a GPU, imported when they are called: without one they are not needed, and Triton perhaps not there."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def on_gpu(name: str) -> Any:
    """A module of Triton kernels, as `_gather.triton_gather`."""
    try:
        return import_module(f"headrace.kernels.{name}")
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] == "triton":
            raise RuntimeError("kernels of a GPU need Triton, which is not installed: pip install triton") from None
        raise
