"""GIN (Xu et al., 2019): a network of the sum of neighbors and (1 + eps) times oneself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headrace.kernels import aggregate
from headrace.nn.first_sum import Factors, FixedSum
from headrace.nn.order import Order, check_order, gradient_of, transform_first
from headrace.nn.split import Split, SplitError
from headrace.nn.structure import Input, Structure, over, sources_of, structure_of, targets_of


class GINConv(nn.Module):
    """PyG's `GINConv`: the same parameters and names, so that its `state_dict` loads.

    Where `nn` is a `Linear`, or a `Sequential` that begins with one, that map may come before the sum, at the smaller width:
    `order` says when ("transform" first, "aggregate" first, or what costs less).

    >>> import headrace as hr, torch
    >>> graph = hr.Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> hr.nn.GINConv(torch.nn.Linear(8, 4))(torch.randn(3, 8), graph).shape
    torch.Size([3, 4])
    """

    reads_ids = True

    def __init__(self, nn: nn.Module, eps: float = 0.0, train_eps: bool = False, *, order: Order = "auto") -> None:
        super().__init__()
        self.nn, self.initial_eps, self.order = nn, eps, check_order(order)
        value = torch.full((1,), float(eps))
        self.eps: Tensor
        if train_eps:
            self.eps = torch.nn.Parameter(value)
        else:
            self.register_buffer("eps", value)

    def reset_parameters(self) -> None:
        for module in self.nn.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    def forward(self, x: Input, where: Structure | Tensor, *, ids: Tensor | None = None, summed: Tensor | None = None) -> Tensor:
        """New rows of the targets.  # [num_src, in] -> [num_dst, out]

        `summed` are the sums that `fixed_sum` makes of `x`, if they have been made already.
        """
        where = structure_of(where, x, ids=ids)
        first, _ = _split(self.nn)
        if summed is not None or first is None or not self._transforms_first(first, x, where):
            out: Tensor = self.nn(self._with_own(self._sum(x, where, ids) if summed is None else summed, x, where, ids))
            return out
        return self._finish(self._mapped_first(x, where, first.weight, ids), where)

    def _mapped_first(self, x: Input, where: Structure, weight: Tensor, ids: Tensor | None) -> Tensor:
        """The sum of rows that went through the map `weight` before it."""
        moved = nn.functional.linear(sources_of(x, where, ids), weight)
        own = nn.functional.linear(x[1], weight) if isinstance(x, tuple) else targets_of(moved, where, None)
        return self._with_own(self._sum(moved, where, None), (moved, own), where, None)

    def _finish(self, rows: Tensor, where: Structure) -> Tensor:
        """What follows the first map: its bias, and the rest of the network."""
        first, rest = _split(self.nn)
        assert first is not None
        out = rows if first.bias is None else rows + first.bias.to(rows.dtype)  # under autocast, the type that a linear map gives
        for module in rest:
            out = module(out)
        return out

    def split(self) -> Split:
        """Summed with the own row and mapped by input column; then the bias and the rest of the network."""
        first, _ = _split(self.nn)
        if first is None:
            raise SplitError("GINConv's network does not begin with a linear map, so it is not linear in the columns of its input")
        if isinstance(self.eps, nn.Parameter):
            raise SplitError("GINConv learns eps, which multiplies all columns of a row: use train_eps=False")
        (name,) = (name for name, weight in self.named_parameters() if weight is first.weight)

        def mapped(
            x: Tensor, where: Structure, weights: Sequence[Tensor], ids: Tensor | None = None, summed: Tensor | None = None
        ) -> Tensor:
            (weight,) = weights
            if summed is None and transform_first(where, *weight.shape[::-1], order=self.order, gradient=gradient_of(x)):
                return self._mapped_first(x, where, weight, ids)
            rows = self._sum(x, where, ids) if summed is None else summed
            return nn.functional.linear(self._with_own(rows, x, where, ids), weight)

        return Split((name,), first.out_features, mapped, self._finish)

    def fixed_sum(self) -> FixedSum | None:
        """What is summed before anything that is learnt: the rows of neighbors. Oneself comes with eps, which may be learnt."""
        first, _ = _split(self.nn)
        if first is None:
            return None
        make = lambda x, where: self._sum(x, where, None)  # noqa: E731
        return FixedSum(("gin",), make, first.in_features, first.out_features, self.order, adds_own=True, factors=_plain_sum)

    def _transforms_first(self, first: nn.Linear, x: Input, where: Structure) -> bool:
        gradient = gradient_of(x[0] if isinstance(x, tuple) else x)
        return transform_first(where, first.in_features, first.out_features, order=self.order, gradient=gradient)

    def _sum(self, x: Input, where: Structure, ids: Tensor | None) -> Tensor:
        sources = x[0] if isinstance(x, tuple) else x
        return aggregate(sources, **over(where, sources), ids=ids)

    def _with_own(self, out: Tensor, x: Input, where: Structure, ids: Tensor | None) -> Tensor:
        return torch.addcmul(out, targets_of(x, where, ids), 1 + self.eps.to(out.dtype))


def _plain_sum(where: Structure, dtype: torch.dtype) -> Factors:
    return Factors()


def _split(network: nn.Module) -> tuple[nn.Linear | None, list[nn.Module]]:
    """The linear map a network begins with, if it does, and what follows."""
    modules = list(network) if isinstance(network, nn.Sequential) else [network]
    if modules and type(modules[0]) is nn.Linear and not _hooked(network) and not _hooked(modules[0]):
        return modules[0], modules[1:]
    return None, modules


def _hooked(module: nn.Module) -> bool:
    """Whether something (a spectral norm, say) runs when the module is called, and so would not if only its weight were used."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
