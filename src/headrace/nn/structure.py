"""What a layer runs on: a sampled `Block`, a `Graph` or rows of one, or PyG's `edge_index`. All become compressed rows."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from headrace.graph import Graph, RowRange
from headrace.kernels import gather, prepare


class Structure(Protocol):
    """Compressed rows from `num_src` sources to `num_dst` targets; row i is of source `first + i`."""

    @property
    def indptr(self) -> Tensor: ...

    @property
    def indices(self) -> Tensor: ...

    @property
    def num_src(self) -> int: ...

    @property
    def num_dst(self) -> int: ...

    @property
    def first(self) -> int: ...


Input = Tensor | tuple[Tensor, Tensor]  # rows of all sources, or of the sources and of the targets


def structure_of(where: Structure | Tensor, x: Input, edge_weight: Tensor | None = None, ids: Tensor | None = None) -> Structure:
    """`where` itself, or the compressed rows of an `edge_index`, after a check that `x` fits it."""
    rows, targets = (len(x[0]), len(x[1])) if isinstance(x, tuple) else (len(x), len(x))
    if ids is not None:
        if isinstance(x, tuple):
            raise ValueError("ids name rows of one array: pass x as that array, not as a pair")
        rows = targets = len(ids)
    if isinstance(where, Tensor):
        if where.dim() != 2 or where.shape[0] != 2:
            raise ValueError(f"edge_index must have shape [2, edges], not {list(where.shape)}")
        if edge_weight is not None and edge_weight.requires_grad:
            raise ValueError("edge_weight requires a gradient, which this layer does not give: pass edge_weight.detach()")
        graph = Graph.from_edges(where[0], where[1], max(rows, targets), weight=edge_weight)
        return graph if targets == graph.num_nodes else graph.rows(0, targets)
    if edge_weight is not None:
        raise ValueError("edge_weight goes with an edge_index: a Graph carries its own weights (graph.weight)")
    if rows < where.num_src:
        raise ValueError(f"x has {rows} rows for {where.num_src} source nodes")
    if isinstance(x, tuple) and targets != where.num_dst:
        raise ValueError(f"x has {targets} rows of targets, but there are {where.num_dst} target nodes")
    return where


def sources_of(x: Input, where: Structure, ids: Tensor | None) -> Tensor:
    """The rows of the sources.  # -> [num_src, d]"""
    return x[0] if isinstance(x, tuple) else x if ids is None else gather(x, ids[: where.num_src], check=False)


def targets_of(x: Input, where: Structure, ids: Tensor | None) -> Tensor:
    """The rows of the targets.  # -> [num_dst, d]"""
    if isinstance(x, tuple):
        return x[1]
    own = slice(where.first, where.first + where.num_dst)
    return x[own] if ids is None else gather(x, ids[own], check=False)


def targets_first(rows: Tensor, where: Structure) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the sources with those of the targets first, and a CSR over them: what a kernel that adds loops asks for."""
    if not isinstance(where, RowRange):
        return rows, where.indptr, where.indices
    begin, end = int(where.indptr[0]), int(where.indptr[-1])
    return rows.roll(-where.first, 0), where.indptr - begin, (where.indices[begin:end] - where.first) % len(rows)


def reverse_of(where: Structure, x: Tensor, *, weighted: bool = True) -> Graph | None:
    """The transpose that a gradient runs over, where it is kept: a whole graph's.

    Without weights an entry is only its two ends, so that of a symmetric graph the transpose is the graph itself.
    """
    if not isinstance(where, Graph) or not x.requires_grad or not torch.is_grad_enabled():
        return None
    return where if not weighted and where.is_symmetric() else where.reverse()


def over(where: Structure, x: Tensor, *, weighted: bool = False, programs: int = 0) -> dict[str, Any]:
    """What `aggregate` is told of `where`: its rows, and of a whole graph what was made for it once.

    programs: how many of a sum may work at a time on a GPU; 0 for one for every block.
    """
    reverse = reverse_of(where, x, weighted=weighted)
    told: dict[str, Any] = {"indptr": where.indptr, "indices": where.indices, "reverse": reverse}
    if isinstance(where, Graph) and where.device.type != "cpu":
        width, kind = x.shape[1], f"{x.dtype} {'without reverse' if reverse is None else 'with reverse'} {weighted}"
        how: dict[str, Any] = {"width": width, "dtype": x.dtype, "reverse": reverse, "programs": programs}
        told["prepared"] = where.derived(f"prepared {width} {kind} {programs}", lambda: prepare(where, **how))
    return told
