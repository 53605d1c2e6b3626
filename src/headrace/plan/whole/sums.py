"""`Sums`: what a sum over all neighbors of one graph costs at any width, by each kernel that could make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace.graph import Graph
from headrace.graph.reorder import cache_misses
from headrace.graph.topology.properties import Properties, window_reuse
from headrace.kernels._aggregate.launch import Launch, launch_for
from headrace.kernels._aggregate.tuned import tuned
from headrace.plan.machine import Machine
from headrace.plan.whole.cost import CACHE_SHARE, Cost, aggregation, elementwise, heaviest_row, split_overhead

SLICE_BYTES = 128  # of a row, that the native kernel sums at a time where it takes slices


@dataclass(frozen=True)
class Kernel:
    """A way to make one sum: on a GPU a launch, on the CPU how many columns at a time."""

    name: str
    cost: Cost
    width: int
    launch: Launch | None = None
    columns: int | None = None


class Sums:
    """Costs of sums over one graph in one order of its nodes. Simulations of the cache are made once per size of rows and kept.

    `misses` may be given in place of the simulation: the share of reads that miss, by the bytes of a row and of a cache.
    """

    def __init__(
        self,
        graph: Graph,
        properties: Properties,
        machine: Machine,
        *,
        order: Tensor | None = None,
        misses: Callable[[int, int], float] | None = None,
        threads: int | None = None,
    ) -> None:
        self.graph, self.properties, self.machine = graph, properties, machine
        self._given, self._order, self._threads = misses, order, threads
        self._misses: dict[tuple[int, int], float] = {}
        self._shared: float | None = None

    def misses(self, row_bytes: int) -> float:
        """The share of reads that come from memory: each row once where all of them fit into the cache."""
        figures = self.properties
        if not figures.edges:
            return 0.0
        if figures.nodes * row_bytes <= CACHE_SHARE * self.machine.cache_bytes:
            return min(figures.nodes / figures.edges, 1.0)
        return self.missed(row_bytes, int(CACHE_SHARE * self.machine.cache_bytes))

    def near_misses(self, row_bytes: int) -> float:
        """The share of reads that miss the cache of the processor that makes them."""
        near_cache = int(CACHE_SHARE * self.machine.near_bytes)
        if not near_cache or not self.properties.edges:
            return 1.0
        return 0.0 if self.properties.nodes * row_bytes <= near_cache else self.missed(row_bytes, near_cache)

    def missed(self, row_bytes: int, cache_bytes: int) -> float:
        """The share of reads that miss a cache of that size, by a simulation that is run once."""
        at = row_bytes, cache_bytes
        if at not in self._misses:
            sizes = {"row_bytes": row_bytes, "cache_bytes": cache_bytes}
            self._misses[at] = (
                self._given(*at)
                if self._given is not None
                else cache_misses(self.graph, self._order, **sizes, threads=self._threads)
            )
        return self._misses[at]

    def reuse(self, row_bytes: int) -> float:
        """How often a row that was fetched serves."""
        return 1.0 / max(self.misses(row_bytes), 1e-9)

    def cost(self, width: int, dtype: torch.dtype, *, attends: bool = False) -> Cost:
        """By the kernel that is chosen; of a fused attention, by how much longer it was measured to take per entry."""
        plain = self.chosen(width, dtype).cost
        return Cost(plain.bytes, plain.seconds * self.machine.attend_factor) if attends else plain

    def chosen(self, width: int, dtype: torch.dtype) -> Kernel:
        """The kernel that would run."""
        return self.kernels(width, dtype)[0]

    def kernels(self, width: int, dtype: torch.dtype) -> list[Kernel]:
        """All kernels that could make the sum, the one that will run first."""
        return self._launches(width, dtype) if self.machine.device == "cuda" else self._slices(width, dtype)

    def _sum(self, width: int, dtype: torch.dtype, columns: int | None = None) -> Cost:
        figures, row = self.properties, (columns or width) * dtype.itemsize
        sizes: dict[str, Any] = {"rows": figures.nodes, "entries": figures.edges, "width": width}
        reads: dict[str, Any] = {"reuse": self.reuse(row), "near_misses": self.near_misses(row)}
        return aggregation(self.machine, **sizes, **reads, dtype=dtype, columns=columns)

    def _slices(self, width: int, dtype: torch.dtype) -> list[Kernel]:
        """All columns at once, or slices of them, each copied to lie together; the native kernel itself decides which."""
        figures, size = self.properties, dtype.itemsize
        whole = Kernel("all columns at once", self._sum(width, dtype), width, columns=width)
        columns = SLICE_BYTES // size
        if width <= columns or figures.nodes * width * size <= CACHE_SHARE * self.machine.cache_bytes:
            return [whole]
        copied = elementwise(self.machine, rows=figures.nodes, width=width, passes=2, itemsize=size)
        sliced = Kernel(f"{columns} columns at a time", self._sum(width, dtype, columns) + copied, width, columns=columns)
        taken = _native.column_tile(figures.nodes, width, size, self.machine.cache_bytes, figures.mean_degree)
        return [sliced, whole] if taken < width else [whole, sliced]

    def _launches(self, width: int, dtype: torch.dtype) -> list[Kernel]:
        """The router's launch first, then those of the other variants, each cut as the router would cut it."""
        known = self.properties
        # What was tuned on the GPU that is here; a plan for one elsewhere takes what comes with the package.
        table = tuned(torch.device("cuda", torch.cuda.current_device())) if torch.cuda.is_available() else None
        figures: dict[str, Any] = {"mean_degree": known.mean_degree, "width": width, "dtype": dtype, "table": table}
        row = launch_for(**figures)
        degrees: dict[str, Any] = {"max_degree": known.max_degree, "degree_cv": known.degree_cv, "rows": known.nodes}
        router = launch_for(**figures, **degrees, rho_w=self.window_reuse)
        several = [router, row, replace(row, variant="split", group=1024), launch_for(**figures, rho_w=float("inf"))]
        by_variant = {launch.variant: launch for launch in reversed(several)}
        kernels = [self._launched(launch, width, dtype) for launch in by_variant.values()]
        return sorted(kernels, key=lambda kernel: kernel.launch != router)

    @property
    def window_reuse(self) -> float:
        """Entries per distinct neighbor in a window of the kernel's, in this order of nodes."""
        if self._shared is None:
            self._shared = window_reuse(self.graph, Launch().window, order=self._order, threads=self._threads)
        return self._shared

    def _launched(self, launch: Launch, width: int, dtype: torch.dtype) -> Kernel:
        cost = self._sum(width, dtype)
        if launch.variant == "row":
            alone = heaviest_row(self.machine, max_degree=self.properties.max_degree, at_once=launch.entries)
            cost = Cost(cost.bytes, max(cost.seconds, alone))
        elif launch.variant == "split":
            degrees = self.graph.degrees()
            heavy = int(degrees[degrees > launch.group].sum())
            if heavy:
                cost = cost + split_overhead(self.machine, heavy_entries=heavy, group=launch.group, width=width)
        else:  # what a window's rows share is read once for all of them, from the cache or not; its products are small
            figures, shared = self.properties, max(self.window_reuse, 1.0)
            entries = int(figures.edges / shared)
            reuse = max(self.reuse(width * dtype.itemsize) / shared, 1.0)
            cost = aggregation(self.machine, rows=figures.nodes, entries=entries, width=width, dtype=dtype, reuse=reuse)
        return Kernel(described(launch), cost, width, launch)


def described(launch: Launch) -> str:
    """A launch in words."""
    cut = {"row": "row", "split": f"split at {launch.group}", "window": f"window of {launch.window}"}[launch.variant]
    return f"{cut}, {launch.columns} columns x {launch.entries} neighbors, {launch.warps} warp{'s' * (launch.warps > 1)}"
