"""Moves or pins a graph for a GPU, and makes the sampler over it. Raises an error where Triton or CUDA is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headrace._device import device_of
from headrace._pinned import PinError, pin_in_place
from headrace.graph import Graph
from headrace.sample.places import Mode, Place, choose
from headrace.sample.weights import cumulative

if TYPE_CHECKING:
    from headrace.sample.gpu.device import DeviceSampler


def gpu_of(device: torch.device | None) -> torch.device:
    """The GPU, with its number. Raises an error where there is no GPU, or no Triton."""
    chosen = device_of("cuda" if device is None else device)
    try:
        import triton  # noqa: F401
    except ImportError:
        raise RuntimeError("sampling on a GPU needs Triton, which is not installed: pip install triton") from None
    return chosen


def find_place(
    graph: Graph, mode: Mode, device: str | torch.device | None, *, pinned: bool, sums: bool
) -> tuple[Place, torch.device]:
    """Where to sample from `graph`; `pinned` says whether the user's graph is. Asks the GPU for its free memory if that decides."""
    wanted = None if device is None else torch.device(device)
    if graph.device.type != "cpu" and wanted is not None and wanted.index not in (None, graph.device.index):
        raise ValueError(f"the graph lies on {graph.device}, but device is {str(wanted)!r}: use graph.to({str(wanted)!r})")
    if wanted is not None and wanted.type == "cuda" and graph.device.type == "cpu":
        wanted = gpu_of(wanted)
    place = choose(
        mode,
        device=None if wanted is None else wanted.type,
        graph_device=graph.device.type,
        pinned=pinned,
        graph_bytes=graph.nbytes + (8 * graph.num_edges if sums else 0),
        free_bytes=torch.cuda.mem_get_info(wanted)[0] if wanted is not None and wanted.type == "cuda" else None,
    )
    if place.mode == "cpu":
        return place, torch.device("cpu")
    return place, gpu_of(wanted if graph.device.type == "cpu" else graph.device)


def device_sampler(
    graph: Graph, fanouts: list[int], *, mode: str, device: torch.device, sums: bool, threads: int, **options: Any
) -> DeviceSampler:
    """The sampler of a graph without edges of weight 0, moved or pinned as `mode` says.

    `sums`: draws are by weight and with replacement. `options` are those of `DeviceSampler`.
    """
    from headrace.sample.gpu.device import DeviceSampler  # which imports triton

    if mode == "gpu":
        placed = graph if graph.device.type != "cpu" else graph.derived(f"on {device}", lambda: graph.to(device))
        indptr = placed.indptr
    else:
        placed = graph.pin()
        indptr = graph.derived(f"indptr on {device}", lambda: graph.indptr.to(device))
    return DeviceSampler(
        indptr,
        placed.indices,
        fanouts,
        weight=placed.weight if options.pop("weighted") else None,
        cumulative=_sums(placed, threads, pinned=mode == "uva") if sums else None,
        time=placed.time if options.pop("temporal") else None,
        edge_id=placed.edge_id,
        owner=placed,
        **options,
    )


def _sums(graph: Graph, threads: int, *, pinned: bool) -> Tensor:
    """Cumulative weights, in memory of the kind that holds the graph."""
    sums = cumulative(graph, threads=threads)
    try:
        if pinned:
            pin_in_place(sums, graph)
    except PinError:
        return graph.derived("pinned cumulative weights", sums.pin_memory)
    return sums
