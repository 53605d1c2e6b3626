"""Attention over compressed rows: one kernel for GAT and GATv2, and its parts where edges have features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from headrace.graph.topology.edge_rows import EdgeRows
from headrace.kernels import aggregate, attend, attend_pairs, attend_pairs_reference, attend_reference
from headrace.pyg.sums import dots, entries, segment_sum, take_targets, weighted_sum


def attended(x: Tensor, source: Tensor, target: Tensor, rows: EdgeRows, **how: Any) -> Tensor:
    """GAT's attention: the score of (i, j) is leaky_relu(source[j] + target[i]).  # [num_src, heads, c] -> [num_dst, heads, c]"""

    def kernel(x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return attend(x, rows.indptr, rows.indices, source=source, target=target, **how, reverse=_reverse(rows, x))

    def plain(x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return attend_reference(x, rows.indptr, rows.indices, source=source, target=target, **how)

    return _twice(kernel, plain, x, source, target)


def attended_pairs(x: Tensor, target: Tensor, attention: Tensor, rows: EdgeRows, **how: Any) -> Tensor:
    """GATv2's: the score is <attention, leaky_relu(x[j] + target[i])>.  # [num_src, heads, c] -> [num_dst, heads, c]"""

    def kernel(x: Tensor, target: Tensor, attention: Tensor) -> Tensor:
        return attend_pairs(x, rows.indptr, rows.indices, target=target, attention=attention, **how, reverse=_reverse(rows, x))

    def plain(x: Tensor, target: Tensor, attention: Tensor) -> Tensor:
        return attend_pairs_reference(x, rows.indptr, rows.indices, target=target, attention=attention, **how)

    return _twice(kernel, plain, x, target, attention)


def row_softmax(scores: Tensor, rows: EdgeRows) -> Tensor:
    """The softmax of the scores over the entries of each row.  # [edges, heads] -> [edges, heads]"""
    out: Tensor = _Softmax.apply(scores, rows)  # type: ignore[no-untyped-call]
    return out


def dropped(shares: Tensor, rows: EdgeRows, rate: float, training: bool) -> Tensor:
    """Dropout of coefficients, with the draws that PyG makes: edge by edge in the order of its `edge_index`."""
    if not training or rate == 0:
        return shares
    if rows.permutation is None:
        return F.dropout(shares, rate)
    return shares * rows.of_edges(F.dropout(torch.ones_like(shares), rate))


def head_sums(x: Tensor, shares: Tensor, rows: EdgeRows) -> Tensor:
    """The sum of neighbors, weighted head by head.  # [num_src, heads, c], [edges, heads] -> [rows, heads, c]"""
    heads = x.shape[1]
    if heads == 1:
        return weighted_sum(x.squeeze(1), rows, weight=shares.squeeze(1)).unsqueeze(1)
    out = weighted_sum(_stacked(x), _repeated(rows, heads), weight=_stacked(shares))
    return out.view(heads, rows.num_rows, -1).transpose(0, 1)


def head_dots(left: Tensor, x: Tensor, rows: EdgeRows) -> Tensor:
    """Products of both ends of every entry, head by head.  # [rows, heads, c], [num_src, heads, c] -> [edges, heads]"""
    heads = x.shape[1]
    if heads == 1:
        return dots(left.squeeze(1), x.squeeze(1), rows).unsqueeze(1)
    return dots(_stacked(left), _stacked(x), _repeated(rows, heads)).view(heads, -1).t().contiguous()


def _repeated(rows: EdgeRows, heads: int) -> EdgeRows:
    if torch.is_grad_enabled():
        rows.reverse()  # repeating it costs less than transposing what was repeated
    return rows.repeated(heads)


def _stacked(values: Tensor) -> Tensor:
    """All rows of the first head, then all of the second, as rows of one matrix.  # [n, heads, ...] -> [heads * n, ...]"""
    return values.transpose(0, 1).reshape(-1, *values.shape[2:])


def _reverse(rows: EdgeRows, x: Tensor) -> Any:
    return rows.reverse() if x.requires_grad else None


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, rows: EdgeRows) -> Tensor:  # type: ignore[override]
        top = aggregate(scores, rows.indptr, entries(rows), reduce="max")
        powers = (scores - take_targets(top, rows)).exp_()
        shares = powers.div_(take_targets(segment_sum(powers, rows) + 1e-16, rows))
        ctx.rows = rows
        ctx.save_for_backward(shares)
        return shares

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        (shares,), rows = ctx.saved_tensors, ctx.rows
        weighted = shares * grad
        return weighted - shares * take_targets(segment_sum(weighted, rows), rows), None


def _twice(kernel: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`kernel(*inputs)`, whose gradient, if it is to be differentiated itself, is that of `plain`."""
    if not torch.is_grad_enabled() or not any(value.requires_grad for value in inputs):
        return kernel(*inputs)
    out: Tensor = _Twice.apply(kernel, plain, *inputs)  # type: ignore[no-untyped-call]
    return out


class _Twice(Function):
    @staticmethod
    def forward(ctx: Any, kernel: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> Tensor:  # type: ignore[override]
        needed = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            ctx.inner = [value.detach().requires_grad_(need) for value, need in zip(inputs, needed, strict=True)]
            ctx.out = kernel(*ctx.inner)
        ctx.plain = plain
        ctx.save_for_backward(*inputs)
        return ctx.out.detach()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        inputs, inner, out, again = ctx.saved_tensors, ctx.inner, ctx.out, torch.is_grad_enabled()
        if again:  # create_graph: autograd does not see into the kernel
            inner = [value.view_as(value) for value in inputs]  # two of them may be one tensor
            out = ctx.plain(*inner)
        wanted = [value for value, need in zip(inner, ctx.needs_input_grad[2:], strict=True) if need]
        grads = iter(torch.autograd.grad(out, wanted, grad, retain_graph=True, create_graph=again))
        return None, None, *(next(grads) if need else None for need in ctx.needs_input_grad[2:])
