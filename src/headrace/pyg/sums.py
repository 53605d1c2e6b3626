"""Sums over neighbors as torch records them: each gradient is again a sum of this kind, so that it can be differentiated too.

`weighted_sum` and `dots` are each other's gradients; so are `segment_sum` and `take_targets`. Messages are never built by the
first two. A gradient that is zero from some row on is cut there: in a sampled batch the loss is of the first rows alone, and each
layer back needs only the rows that the next one read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from headrace import kernels
from headrace.graph.topology.edge_rows import EdgeRows
from headrace.kernels import aggregate, gather

_Map = Callable[[Tensor, EdgeRows], Tensor]
_CHUNK = 1 << 24  # elements of messages at a time, where the gradient of a maximum has to look at them
_CUT = 0.75  # of the rows: above it the transpose of all of them, which is kept, costs less than one of some
_BLOCK = 64  # rows looked at first: where they hold anything, nothing is cut


def weighted_sum(
    x: Tensor, rows: EdgeRows, *, weight: Tensor | None = None, scale: Tensor | None = None, row_scale: Tensor | None = None
) -> Tensor:
    """`row_scale[v] * sum over row v of weight[e] * scale[s] * x[s]`; the factors are constants.  # [num_src, d] -> [rows, d]"""
    out: Tensor = _Sum.apply(x, weight, scale, row_scale, rows)  # type: ignore[no-untyped-call]
    return out


def mean(x: Tensor, rows: EdgeRows, *, weight: Tensor | None = None) -> Tensor:
    """The sum over each row, divided by the number of its entries.  # [num_src, d] -> [rows, d]"""
    return weighted_sum(x, rows, weight=weight, row_scale=inverse_degrees(rows, x.dtype))


def maximum(x: Tensor, rows: EdgeRows, *, weight: Tensor | None = None) -> Tensor:
    """The largest of each row, 0 where it is empty. As in PyG, equal ones share the gradient.  # [num_src, d] -> [rows, d]"""
    out: Tensor = _Max.apply(x, weight, rows)  # type: ignore[no-untyped-call]
    return out


def reduced(x: Tensor, rows: EdgeRows, reduce: str, *, weight: Tensor | None = None) -> Tensor:
    """Sum, mean or max over each row.  # [num_src, d] -> [rows, d]"""
    if reduce in ("sum", "add"):
        return weighted_sum(x, rows, weight=weight)
    return (mean if reduce == "mean" else maximum)(x, rows, weight=weight)


def dots(left: Tensor, x: Tensor, rows: EdgeRows) -> Tensor:
    """The product of the rows at both ends of every entry.  # [rows, d], [num_src, d] -> [edges]"""
    out: Tensor = _Dots.apply(left, x, rows)  # type: ignore[no-untyped-call]
    return out


def segment_sum(messages: Tensor, rows: EdgeRows) -> Tensor:
    """The sum over each row of what its entries hold.  # [edges, ...] -> [rows, ...]"""
    out: Tensor = _Linear.apply(messages, rows, _by_row, _at_targets)  # type: ignore[no-untyped-call]
    return out


def take_targets(x: Tensor, rows: EdgeRows) -> Tensor:
    """The row of `x` at the target of every entry.  # [rows, ...] -> [edges, ...]"""
    out: Tensor = _Linear.apply(x, rows, _at_targets, _by_row)  # type: ignore[no-untyped-call]
    return out


def take_sources(x: Tensor, rows: EdgeRows) -> Tensor:
    """The row of `x` at the source of every entry.  # [num_src, ...] -> [edges, ...]"""
    out: Tensor = _Linear.apply(x, rows, _at_sources, _by_source)  # type: ignore[no-untyped-call]
    return out


def inverse_degrees(rows: EdgeRows, dtype: torch.dtype) -> Tensor:
    """1 / the number of entries of each row, 1 where it has none.  # -> [rows]"""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return rows.derived(f"inverse degrees {wide}", lambda: rows.degrees().clamp_min(1).to(wide).reciprocal())


def rows_used(grad: Tensor) -> int:
    """How many rows there are before the first of those that are all zero to the end."""
    used = len(grad)
    noted: tuple[int, int] | None = getattr(grad, "_headrace_used", None)
    if noted is not None and noted[1] == grad._version:
        return noted[0]
    if used <= _BLOCK or grad.device.type != "cpu" or _any(grad[used - _BLOCK :]):
        return used
    step = used // 2
    while step >= _BLOCK:
        while used > step and not _any(grad[used - step : used]):
            used -= step
        step //= 2
    return used


def note_used(grad: Tensor, used: int) -> Tensor:
    """`grad`, with a note for `rows_used` that holds until it is changed (autograd adds to gradients in place)."""
    grad._headrace_used = (used, grad._version)  # type: ignore[attr-defined]
    return grad


def _any(part: Tensor) -> bool:
    low, high = torch.aminmax(part.detach())
    return not (float(low) == 0.0 == float(high))  # NaN is something


def padded(part: Tensor, rows: int) -> Tensor:
    """`part` with rows of zeros behind it."""
    return part if len(part) == rows else torch.nn.functional.pad(part, (0, 0) * (part.dim() - 1) + (0, rows - len(part)))


class _Sum(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, weight: Tensor | None, scale: Tensor | None, row_scale: Tensor | None, rows: EdgeRows
    ) -> Tensor:
        ctx.rows, ctx.count = rows, len(x)
        ctx.save_for_backward(x if weight is not None and ctx.needs_input_grad[1] else None, weight, scale, row_scale)
        return aggregate(x, rows.indptr, rows.indices, weight=weight, scale=scale, row_scale=row_scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        x, weight, scale, row_scale = ctx.saved_tensors
        rows, used = ctx.rows, rows_used(grad)
        edges = len(rows.indices)
        if used < _CUT * rows.num_rows:
            rows, grad = rows.head(used), grad[:used]
            weight = None if weight is None else weight[: len(rows.indices)]
            row_scale = None if row_scale is None else row_scale[:used]
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            back = rows.reverse()
            turned = None if weight is None else back.of_edges(weight)
            grad_x = _Sum.apply(grad, turned, row_scale, scale, back)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1]:
            scaled = grad if row_scale is None else grad * row_scale.to(grad.dtype).unsqueeze(1)
            sources = x if scale is None else x * scale.to(x.dtype).unsqueeze(1)
            grad_weight = padded(dots(scaled, sources, rows), edges).to(weight.dtype)
        return grad_x, grad_weight, None, None, None


class _Dots(Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, x: Tensor, rows: EdgeRows) -> Tensor:  # type: ignore[override]
        ctx.rows = rows
        ctx.save_for_backward(left, x)
        return kernels.dots(left, x, rows.indptr, rows.indices)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        (left, x), rows = ctx.saved_tensors, ctx.rows
        grad_left = weighted_sum(x, rows, weight=grad) if ctx.needs_input_grad[0] else None
        grad_x = None
        if ctx.needs_input_grad[1]:
            back = rows.reverse()
            grad_x = weighted_sum(left, back, weight=back.of_edges(grad))
        return grad_left, grad_x, None


class _Linear(Function):
    """A linear map of rows and its adjoint, which are each other's gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: EdgeRows, there: _Map, back: _Map) -> Tensor:  # type: ignore[override]
        ctx.rows, ctx.there, ctx.back = rows, there, back
        return there(x, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return _Linear.apply(grad, ctx.rows, ctx.back, ctx.there), None, None, None  # type: ignore[no-untyped-call]


def _by_row(messages: Tensor, rows: EdgeRows) -> Tensor:
    return aggregate(messages, rows.indptr, entries(rows))


def _by_source(messages: Tensor, rows: EdgeRows) -> Tensor:
    back = rows.reverse()
    assert back.permutation is not None
    positions = back.permutation.long()
    return aggregate(messages, back.indptr, rows.derived("by source", lambda: entries(rows)[positions]))


def _at_targets(x: Tensor, rows: EdgeRows) -> Tensor:
    return gather(x.contiguous(), rows.targets(), check=False)


def _at_sources(x: Tensor, rows: EdgeRows) -> Tensor:
    return gather(x.contiguous(), rows.sources(), check=False)


class _Max(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, rows: EdgeRows) -> Tensor:  # type: ignore[override]
        out = aggregate(x, rows.indptr, rows.indices, weight=weight, reduce="max")
        ctx.rows = rows
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        (x, weight, out), rows = ctx.saved_tensors, ctx.rows
        out = out.detach()
        width = max(_CHUNK // max(len(rows.indices), 1), 1)
        grads, grad_weight = [], None
        for begin in range(0, max(x.shape[1], 1), width):
            columns = slice(begin, begin + width)
            messages = take_sources(x[:, columns], rows)
            values = messages if weight is None else messages * weight.to(x.dtype).unsqueeze(1)
            reached = (values.detach() == take_targets(out[:, columns], rows)).to(x.dtype)
            # torch starts from zeros, and where the result is 0 counts them as one that reached it.
            among = segment_sum(reached, rows) + (out[:, columns] == 0)
            shares = reached * take_targets(grad[:, columns] / among.clamp_min(1), rows)
            if ctx.needs_input_grad[0]:
                turned = shares if weight is None else shares * weight.to(x.dtype).unsqueeze(1)
                grads.append(_Linear.apply(turned, rows, _by_source, _at_sources))  # type: ignore[no-untyped-call]
            if ctx.needs_input_grad[1]:
                part = (shares * messages).sum(1).to(weight.dtype)
                grad_weight = part if grad_weight is None else grad_weight + part
        return torch.cat(grads, 1) if grads else None, grad_weight, None


def edgewise(rows: EdgeRows) -> EdgeRows:
    """The same rows for `take_sources`, `take_targets` and `segment_sum` of messages in the order of the `edge_index`."""
    return rows if rows.permutation is None else rows.derived("edgewise", lambda: _in_edge_order(rows))


def _in_edge_order(rows: EdgeRows) -> EdgeRows:
    assert rows.permutation is not None
    places = rows.permutation.long()
    ends = {"targets": rows.targets(), "sources": rows.sources()}
    known: dict[str, Any] = {name: torch.empty_like(ids).index_copy_(0, places, ids) for name, ids in ends.items()}
    return EdgeRows(rows.indptr, rows.indices, rows.num_src, rows.num_dst, _derived={**known, "entries": rows.permutation})


def entries(rows: EdgeRows) -> Tensor:
    """The number of every entry.  # -> [edges]"""
    count = len(rows.indices)
    dtype = torch.int32 if count <= torch.iinfo(torch.int32).max else torch.int64
    return rows.derived("entries", lambda: torch.arange(count, dtype=dtype, device=rows.indices.device))
