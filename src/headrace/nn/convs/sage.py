"""GraphSAGE (Hamilton et al., 2017): `lin_l(reduce of neighbors) + lin_r(own row)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.kernels import aggregate
from headrace.nn.first_sum import Factors, FixedSum
from headrace.nn.order import Order, check_order, gradient_of, transform_first
from headrace.nn.split import Split, SplitError
from headrace.nn.structure import Input, Structure, over, sources_of, structure_of, targets_of


class SAGEConv(nn.Module):
    """PyG's `SAGEConv`: the same parameters, names and initial distribution, so that its `state_dict` loads.

    `order` says whether `lin_l` comes before the sum or mean ("transform") or after it ("aggregate"); both give the same. A
    maximum does not commute with a map, and always comes first.

    >>> import headrace as hr, torch
    >>> graph = hr.Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> hr.nn.SAGEConv(8, 4)(torch.randn(3, 8), graph).shape
    torch.Size([3, 4])
    """

    reads_ids = True  # can read rows by global id from a feature array, without a copy of them

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: Literal["mean", "sum", "add", "max"] = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        *,
        order: Order = "auto",
    ) -> None:
        super().__init__()
        self.order = check_order(order)
        if aggr not in ("mean", "sum", "add", "max"):
            raise ValueError(f"aggr must be 'mean', 'sum', 'add' or 'max', not {aggr!r}")
        self.in_channels = (in_channels, in_channels) if isinstance(in_channels, int) else tuple(in_channels)
        self.out_channels, self.normalize, self.root_weight, self.project = out_channels, normalize, root_weight, project
        self.reduce: Literal["mean", "sum", "max"] = "sum" if aggr == "add" else aggr
        if project:
            self.lin = nn.Linear(self.in_channels[0], self.in_channels[0])
        self.lin_l = nn.Linear(self.in_channels[0], out_channels, bias=bias)
        if root_weight:
            self.lin_r = nn.Linear(self.in_channels[1], out_channels, bias=False)

    def reset_parameters(self) -> None:
        for name in ("lin", "lin_l", "lin_r"):
            if hasattr(self, name):
                getattr(self, name).reset_parameters()

    def forward(self, x: Input, where: Structure | Tensor, *, ids: Tensor | None = None, summed: Tensor | None = None) -> Tensor:
        """New rows of the targets.  # [num_src, in] -> [num_dst, out]

        With `ids`, source i is row `ids[i]` of `x`: a whole feature array, of which only what the sums need is read. `summed` are
        the sums that `fixed_sum` makes of `x`, if they have been made already.
        """
        where = structure_of(where, x, ids=ids)
        if self.project:
            x, ids = (torch.relu(self.lin(sources_of(x, where, ids))), targets_of(x, where, ids)), None
        out = self._mapped(x, where, self._weights(), self.lin_l.bias, ids, summed)
        return F.normalize(out, dim=-1) if self.normalize else out

    def _weights(self) -> tuple[Tensor, ...]:
        return (self.lin_l.weight, self.lin_r.weight) if self.root_weight else (self.lin_l.weight,)

    def _mapped(
        self, x: Input, where: Structure, weights: Sequence[Tensor], bias: Tensor | None, ids: Tensor | None, summed: Tensor | None
    ) -> Tensor:
        """The reduced rows and the own ones through their maps, `weights`."""
        sources = x[0] if isinstance(x, tuple) else x
        left, right = weights[0], weights[1] if self.root_weight else None
        if summed is not None:
            out = F.linear(summed, left, bias)
            if right is not None:  # added to it as it is computed: neither is copied beside the other
                out = torch.addmm(out, targets_of(x, where, ids).to(out.dtype), right.to(out.dtype).t())
            return out
        gradient = gradient_of(sources)
        if self.reduce != "max" and transform_first(where, *left.shape[::-1], order=self.order, gradient=gradient):
            out = self._sum(F.linear(sources_of(x, where, ids), left), where, None)
            if bias is not None:
                out = out + bias.to(out.dtype)  # under autocast, the type that a linear map gives
            return out if right is None else out + F.linear(targets_of(x, where, ids), right)
        if right is None:
            return F.linear(self._sum(sources, where, ids), left, bias)
        both = torch.cat([self._sum(sources, where, ids), targets_of(x, where, ids)], dim=1)  # one product of the two halves
        return F.linear(both, torch.cat([left, right], dim=1), bias)

    def split(self) -> Split:
        """Reduced and mapped by input column; then bias and normalization."""
        if self.reduce == "max" or self.project:
            what = "a maximum" if self.reduce == "max" else "a projection with relu"
            raise SplitError(f"SAGEConv takes {what} of the rows before its map, which is not linear in their columns")
        names = ("lin_l.weight", "lin_r.weight") if self.root_weight else ("lin_l.weight",)

        def mapped(
            x: Tensor, where: Structure, weights: Sequence[Tensor], ids: Tensor | None = None, summed: Tensor | None = None
        ) -> Tensor:
            return self._mapped(x, where, weights, None, ids, summed)

        return Split(names, self.out_channels, mapped, self._finish, reads_own=self.root_weight)

    def _finish(self, rows: Tensor, where: Structure) -> Tensor:
        out = rows if self.lin_l.bias is None else rows + self.lin_l.bias.to(rows.dtype)
        return F.normalize(out, dim=-1) if self.normalize else out

    def fixed_sum(self) -> FixedSum | None:
        """What is reduced before anything that is learnt: the rows of neighbors, unless they are projected first."""
        if self.project:
            return None
        order: Order = "aggregate" if self.reduce == "max" else self.order
        make = lambda x, where: self._sum(x, where, None)  # noqa: E731
        factors = None if self.reduce == "max" else self._factors
        return FixedSum(("sage", self.reduce), make, self.in_channels[0], self.out_channels, order, factors=factors)

    def _factors(self, where: Structure, dtype: torch.dtype) -> Factors:
        return Factors(row_scale=where.indptr.diff().clamp_min(1).to(dtype).reciprocal()) if self.reduce == "mean" else Factors()

    def _sum(self, x: Tensor, where: Structure, ids: Tensor | None) -> Tensor:
        return aggregate(x, **over(where, x, weighted=self.reduce == "max"), reduce=self.reduce, ids=ids)

    def extra_repr(self) -> str:
        return f"{self.in_channels[0]}, {self.out_channels}, aggr={self.reduce!r}"
