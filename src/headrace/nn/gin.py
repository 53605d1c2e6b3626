"""GIN (Xu et al., 2019): a network of the sum of neighbors and (1 + eps) times oneself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.kernels import aggregate
from headrace.nn.first_sum import FixedSum
from headrace.nn.order import Order, check_order, gradient_of, transform_first
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
        first, rest = _split(self.nn)
        if summed is not None or first is None or not self._transforms_first(first, x, where):
            out: Tensor = self.nn(self._with_own(self._sum(x, where, ids) if summed is None else summed, x, where, ids))
            return out
        sources = sources_of(x, where, ids)
        moved = nn.functional.linear(sources, first.weight)
        own = nn.functional.linear(x[1], first.weight) if isinstance(x, tuple) else targets_of(moved, where, None)
        out = self._with_own(self._sum(moved, where, None), (moved, own), where, None)
        out = out if first.bias is None else out + first.bias.to(out.dtype)  # under autocast, the type that a linear map gives
        for module in rest:
            out = module(out)
        return out

    def fixed_sum(self) -> FixedSum | None:
        """What is summed before anything that is learnt: the rows of neighbors. Oneself comes with eps, which may be learnt."""
        first, _ = _split(self.nn)
        if first is None:
            return None
        make = lambda x, where: self._sum(x, where, None)  # noqa: E731
        return FixedSum(("gin",), make, first.in_features, first.out_features, self.order, adds_own=True)

    def _transforms_first(self, first: nn.Linear, x: Input, where: Structure) -> bool:
        gradient = gradient_of(x[0] if isinstance(x, tuple) else x)
        return transform_first(where, first.in_features, first.out_features, order=self.order, gradient=gradient)

    def _sum(self, x: Input, where: Structure, ids: Tensor | None) -> Tensor:
        sources = x[0] if isinstance(x, tuple) else x
        return aggregate(sources, **over(where, sources), ids=ids)

    def _with_own(self, out: Tensor, x: Input, where: Structure, ids: Tensor | None) -> Tensor:
        return torch.addcmul(out, targets_of(x, where, ids), 1 + self.eps.to(out.dtype))


def _split(network: nn.Module) -> tuple[nn.Linear | None, list[nn.Module]]:
    """The linear map a network begins with, if it does, and what follows."""
    modules = list(network) if isinstance(network, nn.Sequential) else [network]
    if modules and type(modules[0]) is nn.Linear and not _hooked(network) and not _hooked(modules[0]):
        return modules[0], modules[1:]
    return None, modules


def _hooked(module: nn.Module) -> bool:
    """Whether something (a spectral norm, say) runs when the module is called, and so would not if only its weight were used."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
