"""GIN (Xu et al., 2019): a network of the sum of neighbours and (1 + eps) times oneself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.kernels import aggregate
from headrace.nn.structure import Input, Structure, reverse_of, sources_of, structure_of, targets_of, transform_first


class GINConv(nn.Module):
    """PyG's `GINConv`: the same parameters and names, so that its `state_dict` loads.

    Where `nn` is a `Sequential` that begins with a `Linear`, that map may come before the sum, at the smaller width.

    >>> import headrace as hr, torch
    >>> graph = hr.Graph.from_edges([0, 1, 2], [1, 2, 0])
    >>> hr.nn.GINConv(torch.nn.Linear(8, 4))(torch.randn(3, 8), graph).shape
    torch.Size([3, 4])
    """

    reads_ids = True

    def __init__(self, nn: nn.Module, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__()
        self.nn, self.initial_eps = nn, eps
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

    def forward(self, x: Input, where: Structure | Tensor, *, ids: Tensor | None = None) -> Tensor:
        """New rows of the targets.  # [num_src, in] -> [num_dst, out]"""
        where = structure_of(where, x, ids=ids)
        first, rest = _split(self.nn)
        if first is None or not transform_first(where, first.in_features, first.out_features):
            out: Tensor = self.nn(self._sum(x, where, ids))
            return out
        sources = sources_of(x, where, ids)
        moved = nn.functional.linear(sources, first.weight)
        own = nn.functional.linear(x[1], first.weight) if isinstance(x, tuple) else targets_of(moved, where, None)
        out = self._sum((moved, own), where, None)
        out = out if first.bias is None else out + first.bias.to(out.dtype)  # under autocast, the type that a linear map gives
        for module in rest:
            out = module(out)
        return out

    def _sum(self, x: Input, where: Structure, ids: Tensor | None) -> Tensor:
        sources = x[0] if isinstance(x, tuple) else x
        out = aggregate(sources, where.indptr, where.indices, ids=ids, reverse=reverse_of(where, sources))
        return out + (1 + self.eps.to(out.dtype)) * targets_of(x, where, ids)


def _split(network: nn.Module) -> tuple[nn.Linear | None, list[nn.Module]]:
    """The linear map a network begins with, if it does, and what follows."""
    modules = list(network) if isinstance(network, nn.Sequential) else [network]
    if modules and type(modules[0]) is nn.Linear and not _hooked(network) and not _hooked(modules[0]):
        return modules[0], modules[1:]
    return None, modules


def _hooked(module: nn.Module) -> bool:
    """Whether something (a spectral norm, say) runs when the module is called, and so would not if only its weight were used."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
