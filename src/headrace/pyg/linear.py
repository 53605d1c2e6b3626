"""Linear maps of a layer, as products whose gradients stop at the last row that has one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.modules.module import _has_any_global_hook
from torch_geometric.nn.dense.linear import Linear as PygLinear

from headrace.pyg.sums import note_used, padded, rows_used


def weights_of(module: Any, x: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """The weight and bias of a module that is `F.linear` of them and nothing else, or None.

    Hooks, parametrizations, sizes that are not known yet and autocast all are something else: the module itself is then called.
    """
    if type(module) not in (PygLinear, nn.Linear) or torch.is_autocast_enabled(x.device.type) or _has_any_global_hook():
        return None
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return None
    weight, bias = module._parameters.get("weight"), module._parameters.get("bias")
    if type(weight) is not nn.Parameter or (bias is not None and type(bias) is not nn.Parameter):
        return None
    return (weight, bias) if weight.dtype == x.dtype and x.shape[-1] == weight.shape[1] else None


def mapped(module: Any, x: Tensor) -> Tensor:
    """`module(x)`.  # [n, in] -> [n, out]"""
    parts = weights_of(module, x)
    out: Tensor = module(x) if parts is None else linear(x, *parts)
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`.  # [n, in] -> [n, out]"""
    out: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def two_maps(x: Tensor, weight: Tensor, summed: Tensor, other: Tensor, bias: Tensor | None) -> Tensor:
    """`x weight^T + bias`, plus `summed other^T` in its first rows.  # [n, in], [m <= n, in'] -> [n, out]"""
    out: Tensor = _TwoMaps.apply(x, weight, summed, other, bias)  # type: ignore[no-untyped-call]
    return out


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        part = grad[: rows_used(grad)]
        need_x, need_weight, need_bias = ctx.needs_input_grad
        return (
            _product(part, weight, len(x)) if need_x else None,
            part.t() @ x[: len(part)] if need_weight else None,
            part.sum(0) if need_bias else None,
        )


class _TwoMaps(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, summed: Tensor, other: Tensor, bias: Tensor | None) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight, summed, other)
        out = F.linear(x, weight, bias)
        out[: len(summed)].addmm_(summed, other.t())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        x, weight, summed, other = ctx.saved_tensors
        part = grad[: rows_used(grad)]
        first = part[: len(summed)]
        need_x, need_weight, need_summed, need_other, need_bias = ctx.needs_input_grad
        return (
            _product(part, weight, len(x)) if need_x else None,
            part.t() @ x[: len(part)] if need_weight else None,
            _product(first, other, len(summed)) if need_summed else None,
            first.t() @ summed[: len(first)] if need_other else None,
            part.sum(0) if need_bias else None,
        )


def _product(part: Tensor, weight: Tensor, rows: int) -> Tensor:
    """`part @ weight`, and rows of zeros behind it; they are not looked for again.  # [n, out] -> [rows, in]"""
    if torch.is_grad_enabled():  # a gradient of this gradient is wanted
        return padded(part @ weight, rows)
    out = part.new_empty(rows, weight.shape[1])
    torch.mm(part, weight, out=out[: len(part)])
    out[len(part) :].zero_()
    return note_used(out, len(part))
