"""`GATConv` and `GATv2Conv`: attention over neighbors in one kernel, or in its parts where edges have features."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor
from torch_geometric.utils import add_self_loops, remove_self_loops

from headrace.graph.topology.edge_rows import EdgeRows, kept_with, rows_of
from headrace.kernels import seed_for
from headrace.pyg.attention import attended, attended_pairs, dropped, head_sums, row_softmax
from headrace.pyg.layer import Fast, own_rows
from headrace.pyg.linear import linear, mapped, weights_of
from headrace.pyg.sums import take_sources, take_targets


class _Attention(Fast):
    """What the two versions share: loops, dropout, and what follows the sum."""

    reduces = ("sum", "add")
    takes = ("x_j", "alpha")
    _none: ClassVar[tuple[EdgeRows | None, Any, Any]] = (None, None, None)  # for PyG's path
    heads: int
    out_channels: int
    add_self_loops: bool
    dropout: float
    negative_slope: float

    def _rows(self, x: Any, edge_index: Any, edge_attr: Any, size: Any) -> tuple[EdgeRows | None, Any, Any]:
        """The rows, or None for PyG's path, and the features of sources and targets."""
        source, own = (x, x) if isinstance(x, Tensor) else x
        if own is None or self.dropout >= 1:
            return None, source, own
        if edge_attr is not None and not _are_attributes(edge_attr, edge_index, source):
            return None, source, own
        rows = self.rows_for(edge_index, source, own, size)
        if rows is None or (self.add_self_loops and rows.num_dst > rows.num_src):
            return None, source, own
        return rows.whole(), source, own_rows(own, rows)

    def _looped(self, x: Any, edge_index: Any, size: Any) -> Tensor | None:
        """Of a small graph the edges with a loop for every node, kept with the `edge_index`; None for PyG's own `forward`."""
        if not self.add_self_loops or not isinstance(x, Tensor) or x.dim() != 2 or self._ends(edge_index, size) is None:
            return None
        make = lambda: add_self_loops(remove_self_loops(edge_index)[0], num_nodes=len(x))[0]  # noqa: E731
        looped: Tensor = kept_with(edge_index, f"loops {len(x)}", make)
        return looped

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self.heads, self.out_channels)

    def _how(self, x: Tensor) -> dict[str, Any]:
        rate = self.dropout if self.training else 0.0  # type: ignore[attr-defined]
        seed = seed_for(x) if rate else 0
        return {"slope": self.negative_slope, "self_loops": self.add_self_loops, "dropout": rate, "seed": seed}

    def _with_loops(self, rows: EdgeRows, edge_index: Tensor, edge_attr: Tensor) -> tuple[EdgeRows, Tensor]:
        """Rows and attributes after what `add_self_loops` does to both; the rows are sorted once."""
        if not self.add_self_loops:
            return rows, rows.of_edges(edge_attr)
        edge_index, edge_attr = edge_index[:, : len(rows.indices)], edge_attr[: len(rows.indices)]  # fewer if rows were trimmed
        loops: dict[str, Any] = {"fill_value": self.fill_value, "num_nodes": rows.num_dst}  # type: ignore[attr-defined]
        others, attributes = remove_self_loops(edge_index, edge_attr)
        looped, attributes = add_self_loops(others, attributes, **loops)
        kept = rows.derived("with loops", lambda: looped)
        looped_rows = rows_of(kept, rows.num_src, rows.num_dst, flipped=self.flow == "target_to_source")
        assert looped_rows is not None
        looped_rows = looped_rows.whole()
        return looped_rows, looped_rows.of_edges(attributes)

    def _finished(self, out: Tensor, own: Tensor) -> Tensor:
        out = out.reshape(-1, self.heads * self.out_channels) if self.concat else out.mean(dim=1)  # type: ignore[attr-defined]
        if self.res is not None:  # type: ignore[attr-defined]
            out = out + mapped(self.res, own)  # type: ignore[attr-defined]
        return out if self.bias is None else out + self.bias  # type: ignore[attr-defined]


class GATConv(_Attention, pyg.GATConv):  # type: ignore[misc]
    """PyG's `GATConv`; scores, softmax, dropout and sum are one kernel, which stores nothing per edge.

    Dropout of the coefficients draws its own numbers, seeded by torch's generator once per call.
    """

    pyg = pyg.GATConv
    updates = ("alpha_j", "alpha_i", "edge_attr", "index", "ptr", "dim_size")
    least = 1 << 18

    def forward(
        self, x: Any, edge_index: Any, edge_attr: Any = None, size: Any = None, return_attention_weights: Any = None
    ) -> Any:
        # edge_updater_type: (alpha: OptPairTensor, edge_attr: OptTensor)
        # propagate_type: (x: OptPairTensor, alpha: Tensor)
        edges = edge_attr if self.lin_edge is not None else None  # without a map of them, PyG leaves them out
        rows, source, own = self._none if return_attention_weights else self._rows(x, edge_index, edges, size)
        if rows is None:
            looped = self._looped(x, edge_index, size) if edges is None and not return_attention_weights else None
            if looped is None:
                return super().forward(x, edge_index, edge_attr, size, return_attention_weights)
            sources = self._heads((self.lin if self.lin is not None else self.lin_src)(x))
            targets = sources if self.lin is not None else self._heads(self.lin_dst(x))
            scores = (sources * self.att_src).sum(-1), (targets * self.att_dst).sum(-1)
            alpha = self.edge_updater(looped, alpha=scores, edge_attr=None)
            return self._finished(self.propagate(looped, x=(sources, targets), alpha=alpha), x)
        if self.lin is not None:
            sources = self._heads(mapped(self.lin, source))
            alike = own is source or isinstance(x, Tensor)
            targets = sources[: rows.num_dst] if alike else self._heads(mapped(self.lin, own))
        else:
            sources, targets = self._heads(mapped(self.lin_src, source)), self._heads(mapped(self.lin_dst, own))
        by = self._scores(self.lin if self.lin is not None else self.lin_src, source, sources, self.att_src)
        to = self._scores(self.lin if self.lin is not None else self.lin_dst, own, targets, self.att_dst)
        if edges is None:
            out = attended(sources, by, to, rows, **self._how(sources)).to(by.dtype)
        else:
            rows, attributes = self._with_loops(rows, edge_index, edges)
            attributes = self._heads(mapped(self.lin_edge, attributes.view(len(attributes), -1)))
            scores = take_sources(by, rows) + take_targets(to, rows) + (attributes * self.att_edge).sum(-1)
            shares = row_softmax(F.leaky_relu(scores, self.negative_slope), rows)
            out = head_sums(sources, dropped(shares, rows, self.dropout, self.training), rows)
        return self._finished(out, own)

    def _scores(self, module: Any, x: Tensor, rows: Tensor, attention: Tensor) -> Tensor:
        """`<attention, rows>` for each head: from `x` at once, by the product of the map and the vector.  # -> [n, heads]"""
        parts = weights_of(module, x)
        if parts is None or parts[1] is not None or attention.dtype != x.dtype:
            return (rows * attention).sum(-1)
        folded = (parts[0].view(self.heads, self.out_channels, -1) * attention[0].unsqueeze(-1)).sum(1)
        return linear(x, folded)


class GATv2Conv(_Attention, pyg.GATv2Conv):  # type: ignore[misc]
    """PyG's `GATv2Conv`; scores, softmax, dropout and sum are one kernel, which stores nothing per edge.

    Dropout of the coefficients draws its own numbers, seeded by torch's generator once per call.
    """

    pyg = pyg.GATv2Conv
    updates = ("x_j", "x_i", "edge_attr", "index", "ptr", "dim_size")
    least, least_on_gpu = 1 << 17, 1 << 26

    def forward(self, x: Any, edge_index: Any, edge_attr: Any = None, return_attention_weights: Any = None) -> Any:
        # edge_updater_type: (x: PairTensor, edge_attr: OptTensor)
        # propagate_type: (x: PairTensor, alpha: Tensor)
        unusual = return_attention_weights or (edge_attr is not None and self.lin_edge is None)
        rows, source, own = self._none if unusual else self._rows(x, edge_index, edge_attr, None)
        if rows is None:
            looped = self._looped(x, edge_index, None) if edge_attr is None and not return_attention_weights else None
            if looped is None:
                return super().forward(x, edge_index, edge_attr, return_attention_weights)
            sources = self._heads(self.lin_l(x))
            targets = sources if self.share_weights else self._heads(self.lin_r(x))
            alpha = self.edge_updater(looped, x=(sources, targets), edge_attr=None)
            return self._finished(self.propagate(looped, x=(sources, targets), alpha=alpha), x)
        sources = self._heads(mapped(self.lin_l, source))
        shared = self.share_weights and (own is source or isinstance(x, Tensor))
        targets = sources[: rows.num_dst] if shared else self._heads(mapped(self.lin_r, own))
        if edge_attr is None:
            out = attended_pairs(sources, targets, self.att[0], rows, **self._how(sources))
            out = out.to(torch.promote_types(sources.dtype, self.att.dtype))
        else:
            rows, attributes = self._with_loops(rows, edge_index, edge_attr)
            attributes = self._heads(mapped(self.lin_edge, attributes.view(len(attributes), -1)))
            pairs = take_sources(sources, rows) + take_targets(targets, rows) + attributes
            shares = row_softmax((F.leaky_relu(pairs, self.negative_slope) * self.att).sum(-1), rows)
            out = head_sums(sources, dropped(shares, rows, self.dropout, self.training), rows)
        return self._finished(out, own)


def _are_attributes(edge_attr: Any, edge_index: Any, x: Any) -> bool:
    """Whether there is a row of floats, or one float, for every edge."""
    if not isinstance(edge_attr, Tensor) or not isinstance(edge_index, Tensor) or not isinstance(x, Tensor):
        return False
    return edge_attr.dim() in (1, 2) and len(edge_attr) == edge_index.shape[-1] and edge_attr.dtype == x.dtype
