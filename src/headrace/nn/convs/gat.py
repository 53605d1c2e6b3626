"""Graph attention (Velickovic et al., 2018) and its second version (Brody et al., 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.kernels import attend, attend_pairs, seed_for
from headrace.nn.convs.init import glorot, uniform, zeros
from headrace.nn.split import Attention, ByNode, Split, SplitError
from headrace.nn.structure import Input, Structure, reverse_of, sources_of, structure_of, targets_first, targets_of


class GATConv(nn.Module):
    """PyG's `GATConv`, or with `v2=True` its `GATv2Conv`: the same parameters, names and initial distribution.

    Attention is one kernel: nothing is stored per edge. Dropout of the coefficients draws from torch's generator once per call.

    >>> import headrace as hr, torch
    >>> graph = hr.Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> hr.nn.GATConv(8, 4, heads=2)(torch.randn(3, 8), graph).shape
    torch.Size([3, 8])
    """

    reads_ids = False  # every source's row is multiplied, so it is gathered in any case

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        bias: bool = True,
        residual: bool = False,
        v2: bool = False,
        share_weights: bool = False,
    ) -> None:
        super().__init__()
        pair = (in_channels, in_channels) if isinstance(in_channels, int) else tuple(in_channels)
        if heads < 1 or out_channels < 1:
            raise ValueError(f"heads and out_channels must be at least 1, not {heads} and {out_channels}")
        self.in_channels, self.out_channels, self.heads, self.concat, self.v2 = in_channels, out_channels, heads, concat, v2
        self.slope, self.dropout, self.add_self_loops = negative_slope, dropout, add_self_loops
        width, total = heads * out_channels, out_channels * (heads if concat else 1)
        if share_weights and not v2:
            raise ValueError("share_weights belongs to v2=True: GAT's first version has one weight")
        if v2:
            self.lin_l = nn.Linear(pair[0], width, bias=bias)
            self.lin_r = self.lin_l if share_weights else nn.Linear(pair[1], width, bias=bias)
            self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        else:
            if isinstance(in_channels, int):
                self.lin = nn.Linear(in_channels, width, bias=False)
            else:
                self.lin_src = nn.Linear(pair[0], width, bias=False)
                self.lin_dst = nn.Linear(pair[1], width, bias=False)
            self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
            self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        self.res = nn.Linear(pair[1], total, bias=False) if residual else None
        self.bias = nn.Parameter(torch.empty(total)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for name in ("lin", "lin_src", "lin_dst", "lin_l", "lin_r", "res"):
            if getattr(self, name, None) is not None:
                glorot(getattr(self, name).weight)
                uniform(getattr(self, name).bias, getattr(self, name).in_features)
        for name in ("att_src", "att_dst", "att"):
            if hasattr(self, name):
                glorot(getattr(self, name))
        zeros(self.bias)

    def forward(self, x: Input, where: Structure | Tensor, *, ids: Tensor | None = None) -> Tensor:
        """New rows of the targets.  # [num_src, in] -> [num_dst, heads * out], or [num_dst, out] without `concat`"""
        where = structure_of(where, x, ids=ids)
        if ids is not None and not isinstance(x, tuple):
            x = sources_of(x, where, ids)
        out = (self._second if self.v2 else self._first)(x, where)
        if self.res is not None:
            out = out + self.res(targets_of(x, where, None))
        return self._biased(out)

    def _first(self, x: Input, where: Structure) -> Tensor:
        if hasattr(self, "lin"):
            rows = self.lin(sources_of(x, where, None))
            own = self.lin(x[1]) if isinstance(x, tuple) else targets_of(rows, where, None)
        else:
            rows = self.lin_src(sources_of(x, where, None))
            own = self.lin_dst(targets_of(x, where, None))
        source, target = self._score(rows, self.att_src), self._score(own, self.att_dst)
        return self._weigh(rows, source, target, where)

    def _score(self, rows: Tensor, attention: Tensor) -> Tensor:
        """The share of rows in the scores of their edges.  # [n, heads * out] -> [n, heads]"""
        return torch.einsum("nhc,hc->nh", self._heads(rows), attention[0].to(rows.dtype))

    def _weigh(self, rows: Tensor, source: Tensor, target: Tensor, where: Structure, seed: int | None = None) -> Tensor:
        """Rows of the sources, weighed by the softmax of their scores."""
        first, indptr, indices = targets_first(self._heads(rows), where)
        if where.first:
            source = source.roll(-where.first, 0)
        return self._joined(attend(first, indptr, indices, source=source, target=target, **self._how(where, rows, seed)))

    def _second(self, x: Input, where: Structure) -> Tensor:
        rows = self.lin_l(sources_of(x, where, None))
        if self.lin_r is self.lin_l and not isinstance(x, tuple):
            own = targets_of(rows, where, None)
        else:
            own = self.lin_r(targets_of(x, where, None))
        return self._weigh_pairs(rows, own, where)

    def _weigh_pairs(self, rows: Tensor, own: Tensor, where: Structure) -> Tensor:
        first, indptr, indices = targets_first(self._heads(rows), where)
        how = self._how(where, rows)
        return self._joined(attend_pairs(first, indptr, indices, target=self._heads(own), attention=self.att[0], **how))

    def _joined(self, out: Tensor) -> Tensor:
        return out.flatten(1) if self.concat else out.mean(dim=1)

    def split(self) -> Split:
        """Projected by input column. GAT then adds the scores of all slices and weighs rows; GATv2 weighs rows that are whole."""
        if not isinstance(self.in_channels, int) or self.res is not None:
            what = "a pair of inputs" if self.res is None else "a residual of its own"
            raise SplitError(f"GATConv with {what} is not split by columns: use one input, and the residual of a Layer")
        return self._split_second() if self.v2 else self._split_first()

    def _split_first(self) -> Split:
        def scores(rows: Tensor, where: Structure, weights: Sequence[Tensor]) -> Tensor:
            source, target = weights
            return torch.cat([self._score(rows, source), self._score(targets_of(rows, where, None), target)])

        def mix(rows: Tensor, scores: Tensor, where: Structure, seed: int) -> Tensor:
            source, target = scores.split([where.num_src, where.num_dst])
            return self._weigh(rows, source, target, where, seed)

        def project(x: Tensor) -> tuple[Tensor, Tensor]:
            rows = self.lin(x)
            return torch.cat([rows, self._score(rows, self.att_src)], dim=1), self._score(rows, self.att_dst)

        return Split(
            ("lin.weight",),
            self.out_channels * (self.heads if self.concat else 1),
            lambda x, where, weights, ids=None, summed=None: F.linear(sources_of(x, where, ids), weights[0]),
            lambda rows, where: self._biased(rows),
            Attention(("att_src", "att_dst"), scores, mix, self.heads, self.dropout),
            by_node=self._by_node(project),
        )

    def _biased(self, rows: Tensor) -> Tensor:
        return rows if self.bias is None else rows + self.bias

    def _by_node(self, project: Callable[[Tensor], tuple[Tensor, Tensor]]) -> ByNode:
        return ByNode(
            project,
            lambda rows: self._biased(self._joined(self._heads(rows))),
            heads=self.heads,
            channels=self.out_channels,
            slope=self.slope,
            self_loops=self.add_self_loops,
            dropout=self.dropout,
            pairs=self.v2,
            edge_weight="att" if self.v2 else None,
            end_weights=() if self.bias is None else ("bias",),
        )

    def _split_second(self) -> Split:
        shared = self.lin_r is self.lin_l

        def mapped(
            x: Tensor, where: Structure, weights: Sequence[Tensor], ids: Tensor | None = None, summed: Tensor | None = None
        ) -> Tensor:
            rows = F.linear(sources_of(x, where, ids), weights[0])
            return rows if shared else torch.cat([rows, F.linear(targets_of(x, where, ids), weights[1])])

        def finish(rows: Tensor, where: Structure) -> Tensor:
            left = rows[: where.num_src]
            left = left if self.lin_l.bias is None else left + self.lin_l.bias
            own = targets_of(left, where, None) if shared else rows[where.num_src :]
            if not shared and self.lin_r.bias is not None:
                own = own + self.lin_r.bias
            return self._biased(self._weigh_pairs(left, own, where))

        def project(x: Tensor) -> tuple[Tensor, Tensor]:
            left = self.lin_l(x)
            return left, left if shared else self.lin_r(x)

        names = ("lin_l.weight",) if shared else ("lin_l.weight", "lin_r.weight")
        return Split(
            names,
            self.heads * self.out_channels,
            mapped,
            finish,
            rows=lambda where: where.num_src + (0 if shared else where.num_dst),
            by_node=self._by_node(project),
        )

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.view(-1, self.heads, self.out_channels)

    def _how(self, where: Structure, rows: Tensor, seed: int | None = None) -> dict[str, Any]:
        rate = self.dropout if self.training else 0.0
        seed_of = seed_for(rows) if rate and seed is None else seed
        return {
            "slope": self.slope,
            "self_loops": self.add_self_loops,
            "dropout": rate,
            "seed": seed_of if rate else 0,
            "reverse": reverse_of(where, rows),
        }

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}, v2={self.v2}"
