"""`RowRange`: some rows of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from headrace.graph.graph import Graph


@dataclass(frozen=True, eq=False)
class RowRange:
    """A range of a graph's rows: the block from all nodes to nodes `begin` .. `end`. Nothing is copied."""

    graph: Graph
    begin: int
    end: int

    @property
    def indptr(self) -> Tensor:
        return self.graph.indptr[self.begin : self.end + 1]

    @property
    def indices(self) -> Tensor:
        return self.graph.indices

    @property
    def first(self) -> int:
        return self.begin

    @property
    def num_src(self) -> int:
        return self.graph.num_nodes

    @property
    def num_dst(self) -> int:
        return self.end - self.begin
