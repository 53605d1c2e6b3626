"""Where a sampler works: on the CPU, or on a GPU whose kernels read the graph in its own memory or, over the bus, in the host's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["auto", "cpu", "uva", "gpu"]


@dataclass(frozen=True)
class Place:
    """Where sampling happens, and why there."""

    mode: Literal["cpu", "uva", "gpu"]
    reason: str


def choose(
    mode: Mode = "auto",
    *,
    device: str | None = None,
    graph_device: str = "cpu",
    pinned: bool = False,
    graph_bytes: int = 0,
    free_bytes: int | None = None,
) -> Place:
    """The place for a graph of `graph_bytes` where the GPU has `free_bytes` left. Devices are kinds: "cpu" or "cuda".

    "gpu" keeps the graph in the GPU's memory, "uva" in page-locked host memory with only `indptr` on the GPU. "auto" leaves a
    graph where the user put it; one in plain host memory, sampled for a GPU, goes there if it takes at most half of what is free,
    so that features, model and batches have the rest.

    >>> choose(device="cuda", graph_bytes=3 << 30, free_bytes=4 << 30)
    Place(mode='uva', reason='the graph takes 3.0 GiB, more than half of the 4.0 GiB that are free on the GPU')
    """
    if mode not in ("auto", "cpu", "uva", "gpu"):
        raise ValueError(f"mode must be 'auto', 'cpu', 'uva' or 'gpu', not {mode!r}")
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"samplers work on a CPU or a CUDA GPU, not on {device!r}")
    if graph_device != "cpu":
        if mode in ("cpu", "uva") or device == "cpu":
            asked = f"mode={mode!r}" if mode in ("cpu", "uva") else f"device={device!r}"
            raise ValueError(f"the graph lies on a GPU, and {asked} needs it in host memory: use graph.to('cpu')")
        return Place("gpu", "the graph lies on the GPU")
    if device == "cpu" and mode in ("uva", "gpu"):
        raise ValueError(f"mode={mode!r} samples on a GPU, but device is 'cpu': give device='cuda', or mode='cpu'")
    if mode != "auto":
        return Place(mode, f"mode={mode!r} was asked for")
    if device == "cpu" or (device is None and not pinned):
        return Place("cpu", "device='cpu' was asked for" if device == "cpu" else "no device was asked for")
    if pinned:
        return Place("uva", "the graph is in page-locked memory")
    if free_bytes is None:
        raise ValueError("to choose between 'uva' and 'gpu', free_bytes of the GPU must be known")
    fits = graph_bytes <= free_bytes // 2
    sizes = f"half of the {_gib(free_bytes)} that are free on the GPU"
    return Place("gpu" if fits else "uva", f"the graph takes {_gib(graph_bytes)}, {'within' if fits else 'more than'} {sizes}")


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
