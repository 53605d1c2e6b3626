"""Attention whose rows and columns lie apart: the passes of `attend` and its gradient, one at a time, on a CPU.

A server that holds some rows computes `attend_rows` of them, and with the gradient of the result `row_gradients`. The gradient of a
column is a sum over the rows that read it, which may be of other servers. `column_gradients` needs three facts of a row and head
besides the gradient and the row's score: the two numbers of `peak`, and delta = <gradient, out>. The source rows of those who
read a column are not needed, nor is anything kept per entry.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_count
from headrace.kernels._attend.ops import attend_options, run_forward
from headrace.kernels._attend.scores import Scores


def attend_rows(x: Tensor, indptr: Tensor, indices: Tensor, scores: Scores) -> tuple[Tensor, Tensor]:
    """What `attend` or `attend_pairs` gives, and `peak`.  # [n, heads, c] -> [rows, heads, c], [rows, 2, heads]

    `peak` has the largest score of a row, and 1 / the sum of exp(score - largest).
    """
    return run_forward(x.contiguous(), indptr, indices, scores, 0)


def row_gradients(
    grad: Tensor, out: Tensor, peak: Tensor, x: Tensor, indptr: Tensor, indices: Tensor, scores: Scores
) -> tuple[Tensor, Tensor | None]:
    """The gradients of `scores.target`, and of `scores.attention` if there is one, from that of `out`."""
    target = torch.empty_like(scores.target)
    attention = None if scores.attention is None else torch.empty_like(scores.attention)
    wanted: dict[str, Any] = {"grad_x": None, "grad_source": None, "grad_target": target, "grad_attention": attention}
    transpose: dict[str, Any] = dict.fromkeys(("t_indptr", "t_indices", "t_position"))
    _run(grad, out, peak, x, indptr, indices, scores, **wanted, **transpose)
    return target, attention


def column_gradients(
    grad: Tensor,
    delta: Tensor,
    peak: Tensor,
    x: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    scores: Scores,
    *,
    positions: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of `x` and of `scores.source`, if there is one, for some columns.  # [n, heads, c], [n, heads]

    Column i has the entries `t_indices[t_indptr[i] : t_indptr[i + 1]]`: rows of `grad`, `delta` [rows, heads], `peak` and
    `scores.target`. Loops are entries like others. `positions` are those of the entries in the whole, for dropout (`Whole`).
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x must be float32 or float64, not {x.dtype}: delta of shorter rows is summed from their entries")
    if scores.self_loops or scores.shift is not None:
        raise ValueError("columns have their loops among their entries, and positions in the whole: scores must have neither")
    if scores.dropout and positions is None:
        raise ValueError("dropout is a function of an entry's position in the whole: pass positions")
    to_x = torch.empty_like(x)
    to_source = None if scores.source is None else torch.empty_like(scores.source)
    if not len(x):
        return to_x, to_source
    rows = torch.zeros(len(grad) + 1, dtype=torch.int64)  # no entry is read by row: their number is all that is checked
    rows[-1] = len(t_indices)
    wanted: dict[str, Any] = {"grad_x": to_x, "grad_source": to_source, "grad_target": None, "grad_attention": None}
    transpose: dict[str, Any] = {
        "t_indptr": t_indptr,
        "t_indices": t_indices,
        "t_position": t_indices if positions is None else positions,
    }
    _run(grad, _with_delta(grad, delta), peak, x, rows, t_indices, scores, **wanted, **transpose)
    return to_x, to_source


def _run(
    grad: Tensor, out: Tensor, peak: Tensor, x: Tensor, indptr: Tensor, indices: Tensor, scores: Scores, **others: Any
) -> None:
    grad, out, peak, x = (array.contiguous() for array in (grad, out, peak, x))
    _native.attend_gradient(grad, out, peak, x, indptr, indices, **others, **attend_options(scores), threads=thread_count(None))


def _with_delta(grad: Tensor, delta: Tensor) -> Tensor:
    """Rows whose product with `grad` is `delta`: the native pass takes `out` for that, which is wider and stays with its owner.

    One element of a row and head is not 0, where the gradient is largest: the product is rounded twice and cannot overflow.
    """
    largest = grad.abs().argmax(-1, keepdim=True)
    at = grad.gather(-1, largest)
    share = torch.where(at == 0, 0.0, delta.unsqueeze(-1) / at)
    return torch.zeros_like(grad).scatter_(-1, largest, share)
