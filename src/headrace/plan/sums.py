"""`Sums`: what a sum over all neighbours of one graph costs at any width, by each kernel that could make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace.graph import Graph
from headrace.graph.properties import Properties
from headrace.graph.reorder import cache_misses
from headrace.kernels.launch import Launch, launch_for
from headrace.plan.cost import CACHE_SHARE, Cost, aggregation, heaviest_row, split_overhead
from headrace.plan.machine import Machine


@dataclass(frozen=True)
class Kernel:
    """A way to make one sum: on a GPU a launch, on the CPU how many columns at a time (None: all)."""

    name: str
    cost: Cost
    width: int
    launch: Launch | None = None
    columns: int | None = None


class Sums:
    """Costs of sums over one graph in one order of its nodes. Simulations of the cache are made once per size of rows and kept.

    `misses` may be given in place of the simulation: the share of reads that miss, by the bytes of a row.
    """

    def __init__(
        self,
        graph: Graph,
        properties: Properties,
        machine: Machine,
        *,
        order: Tensor | None = None,
        misses: Callable[[int], float] | None = None,
        threads: int | None = None,
    ) -> None:
        self.graph, self.properties, self.machine = graph, properties, machine
        self._given, self._order, self._threads = misses, order, threads
        self._misses: dict[int, float] = {}

    def misses(self, row_bytes: int) -> float:
        """The share of reads that come from memory: each row once where all of them fit into the cache."""
        found = self.properties
        if not found.edges:
            return 0.0
        cache = int(CACHE_SHARE * self.machine.cache_bytes)
        if found.nodes * row_bytes <= cache:
            return min(found.nodes / found.edges, 1.0)
        if row_bytes not in self._misses:
            self._misses[row_bytes] = (
                self._given(row_bytes)
                if self._given is not None
                else cache_misses(self.graph, self._order, cache_bytes=cache, row_bytes=row_bytes, threads=self._threads)
            )
        return self._misses[row_bytes]

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
        return self._launches(width, dtype) if self.machine.device == "cuda" else self._tiles(width, dtype)

    def _sum(self, width: int, dtype: torch.dtype, columns: int | None = None, reuse: float | None = None) -> Cost:
        found, used = self.properties, width if columns is None else columns
        reuse = self.reuse(used * dtype.itemsize) if reuse is None else reuse
        sizes = {"rows": found.nodes, "entries": found.edges, "width": width}
        return aggregation(self.machine, **sizes, dtype=dtype, reuse=reuse, columns=columns)

    def _tiles(self, width: int, dtype: torch.dtype) -> list[Kernel]:
        return [Kernel("all columns at once", self._sum(width, dtype), width)]

    def _launches(self, width: int, dtype: torch.dtype) -> list[Kernel]:
        found = self.properties
        router = launch_for(
            mean_degree=found.mean_degree,
            max_degree=found.max_degree,
            degree_cv=found.degree_cv,
            rho_w=found.window_reuse,
            width=width,
            dtype=dtype,
        )
        kernels = [self._launched(replace(router, variant=variant), width, dtype) for variant in ("row", "split", "window")]
        return sorted(kernels, key=lambda kernel: kernel.launch is None or kernel.launch.variant != router.variant)

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
        else:  # what a window's rows share is fetched once for all of them
            cost = self._sum(width, dtype, reuse=max(self.properties.window_reuse, self.reuse(width * dtype.itemsize)))
        return Kernel(described(launch), cost, width, launch)


def described(launch: Launch) -> str:
    """A launch in words."""
    cut = {"row": "row", "split": f"split at {launch.group}", "window": f"window of {launch.window}"}[launch.variant]
    return f"{cut}, {launch.columns} columns x {launch.entries} neighbours, {launch.warps} warp{'s' * (launch.warps > 1)}"
