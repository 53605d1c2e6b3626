"""Attention over neighbors in one pass: scores, softmax over each row, dropout and weighted sum, for GAT and GATv2.

    out[i] = sum over the entries (i, j) of  alpha_ij * x[j],    alpha_i = softmax over j of score_ij

Neither messages nor scores are ever built, in the gradient neither (FlashAttention's idea on compressed rows): kept are, per row
and head, the largest score and the sum of exp(score - largest), from which the gradient finds each coefficient again. With
D_i = <grad_i, out_i> and dropout's factor m the gradient of a score is alpha * (m * <grad_i, x_j> - D_i). A pass over the rows
gives the gradients of `target` and `attention`, a pass over the transpose those of `x` and `source`. Every row has one writer that
takes its entries in order, so any number of threads gives the same bits. On a GPU the same is done by Triton kernels.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_argument
from headrace.kernels._aggregate.aggregate import Rows
from headrace.kernels._aggregate.work import sum_type
from headrace.kernels._attend import ops as _attend_ops
from headrace.kernels._attend.whole import Whole
from headrace.kernels._random import philox, words_of

_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def attend(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    *,
    source: Tensor,
    target: Tensor,
    slope: float = 0.2,
    self_loops: bool = False,
    dropout: float = 0.0,
    seed: int | Tensor = 0,
    reverse: Rows | None = None,
    whole: Whole | None = None,
    threads: int | None = None,
) -> Tensor:
    """GAT's attention: the score of (i, j) is leaky_relu(source[j] + target[i]).  # [n, heads, c] -> [rows, heads, c]

    Velickovic et al., "Graph attention networks", ICLR 2018. `source` is [n, heads] and `target` [rows, heads]; row i is the
    node of source i. An empty row gives 0. With `self_loops` a row has exactly one entry for itself, whatever it has already.
    `dropout` zeroes that share of the coefficients and scales up the others; which ones is a function of the seed, the entry's
    position and the head. On a GPU the seed may lie there (int64, one element): what a CUDA graph replays then draws anew. Scores
    and sums of bf16 and fp16 rows are kept in fp32. `reverse` (a graph's cached `graph.reverse()`) saves the gradient making its
    own transpose. Rows that are part of a `whole` have the dropout that they have there.
    """
    _check(x, indptr, indices, self_loops, dropout, seed, slope, whole)
    rows, heads = indptr.shape[0] - 1, x.shape[1]
    _check_shape("source", source, (x.shape[0], heads), "[rows of x, heads]")
    _check_shape("target", target, (rows, heads), "[rows of indptr, heads]")
    wide = sum_type(x.dtype)
    tensors = [tensor.contiguous() for tensor in (x, indptr, indices, source.to(wide), target.to(wide))]
    how = slope, self_loops, dropout, seed, thread_argument(threads)
    return _attend_ops.attend(*tensors, *_transposed(reverse, indices), *_place(whole, dropout), *how)[0]


def attend_pairs(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    *,
    target: Tensor,
    attention: Tensor,
    slope: float = 0.2,
    self_loops: bool = False,
    dropout: float = 0.0,
    seed: int | Tensor = 0,
    reverse: Rows | None = None,
    whole: Whole | None = None,
    threads: int | None = None,
) -> Tensor:
    """GATv2's attention: the score of (i, j) is <attention, leaky_relu(x[j] + target[i])>.  # [n, heads, c] -> [rows, heads, c]

    Brody et al., "How attentive are graph attention networks?", ICLR 2022. `target` is [rows, heads, c], read in the type of
    `x`, and `attention` [heads, c]. All else is as in `attend`.
    """
    _check(x, indptr, indices, self_loops, dropout, seed, slope, whole)
    rows, heads, channels = indptr.shape[0] - 1, x.shape[1], x.shape[2]
    _check_shape("target", target, (rows, heads, channels), "[rows of indptr, heads, channels]")
    _check_shape("attention", attention, (heads, channels), "[heads, channels]")
    parts = target.to(x.dtype), attention.to(sum_type(x.dtype))
    tensors = [tensor.contiguous() for tensor in (x, indptr, indices, *parts)]
    how = slope, self_loops, dropout, seed, thread_argument(threads)
    return _attend_ops.attend_pairs(*tensors, *_transposed(reverse, indices), *_place(whole, dropout), *how)[0]


def attend_reference(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    *,
    source: Tensor,
    target: Tensor,
    slope: float = 0.2,
    self_loops: bool = False,
    dropout: float = 0.0,
    seed: int = 0,
    whole: Whole | None = None,
) -> Tensor:
    """The same as `attend` in plain torch, messages and all."""
    rows, columns, position = _entries(indptr, indices, self_loops, whole)
    wide = sum_type(x.dtype)
    scores = F.leaky_relu(source.to(wide)[columns] + target.to(wide)[rows], slope)
    return _weigh(x, scores, rows, columns, len(indptr) - 1, _factors(position, x.shape[1], dropout, seed))


def attend_pairs_reference(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    *,
    target: Tensor,
    attention: Tensor,
    slope: float = 0.2,
    self_loops: bool = False,
    dropout: float = 0.0,
    seed: int = 0,
    whole: Whole | None = None,
) -> Tensor:
    """The same as `attend_pairs` in plain torch, messages and all."""
    rows, columns, position = _entries(indptr, indices, self_loops, whole)
    wide = sum_type(x.dtype)
    pairs = F.leaky_relu(x.to(wide)[columns] + target.to(x.dtype).to(wide)[rows], slope)
    scores = (attention.to(wide) * pairs).sum(-1)
    return _weigh(x, scores, rows, columns, len(indptr) - 1, _factors(position, x.shape[1], dropout, seed))


def _entries(indptr: Tensor, indices: Tensor, self_loops: bool, whole: Whole | None) -> tuple[Tensor, Tensor, Tensor]:
    """Row, column and position (in the whole) of every entry. A row's own entry has the position behind all others plus the row."""
    every = torch.arange(len(indptr) - 1, device=indptr.device)
    rows, columns = torch.repeat_interleave(every, indptr.diff()), indices.long()
    position = torch.arange(len(indices), device=indptr.device)
    own = len(indices) + every
    if whole is not None:
        whole.check_shape(len(every))
        position, own = position + whole.shift(indptr)[rows], whole.entries + whole.rows
    if self_loops:
        others = columns != rows
        rows, columns = torch.cat([rows[others], every]), torch.cat([columns[others], every])
        position = torch.cat([position[others], own])
    return rows, columns, position


def _factors(position: Tensor, heads: int, dropout: float, seed: int) -> Tensor:
    """What dropout multiplies each coefficient by.  # [entries] -> [entries, heads]"""
    key = _native.stream_key(seed, 0, 0, _native.Purpose.attend)
    blocks = torch.arange(-(-heads // 4), device=position.device)
    words = philox(key, blocks, *words_of(position.unsqueeze(1))).flatten(1)[:, :heads]
    return (words >= int(dropout * 2**32)).double() / (1 - dropout)


def _weigh(x: Tensor, scores: Tensor, rows: Tensor, columns: Tensor, num_rows: int, factors: Tensor) -> Tensor:
    """The softmax of the scores [entries, heads] over each row, times the factors, as weights of the rows of x."""
    index = rows[:, None].expand_as(scores)
    largest = scores.new_zeros(num_rows, scores.shape[1]).scatter_reduce(0, index, scores.detach(), "amax", include_self=False)
    powers = (scores - largest[rows]).exp()
    totals = scores.new_zeros(largest.shape).index_add(0, rows, powers)
    weights = powers / totals[rows] * factors.to(scores.dtype)
    messages = weights[..., None] * x.to(scores.dtype)[columns]
    return scores.new_zeros(num_rows, *x.shape[1:]).index_add(0, rows, messages).to(x.dtype)


def _check(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    self_loops: bool,
    dropout: float,
    seed: int | Tensor,
    slope: float,
    whole: Whole | None,
) -> None:
    if x.dim() != 3 or x.shape[1] == 0 or x.shape[2] == 0:
        raise ValueError(f"x must be [n, heads, channels] with at least one head and channel, not of shape {tuple(x.shape)}")
    if x.dtype not in _FLOATS:
        raise ValueError(f"x must be float32, float64, float16 or bfloat16, not {x.dtype}")
    if indptr.dim() != 1 or indptr.shape[0] == 0:
        raise ValueError(f"indptr must have one dimension and at least one element, not shape {tuple(indptr.shape)}")
    if indptr.dtype != torch.int64:
        raise ValueError(f"indptr must be int64, not {indptr.dtype}")
    if indices.dim() != 1:
        raise ValueError(f"indices must have one dimension, not shape {tuple(indices.shape)}")
    if indices.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"indices must be int32 or int64, not {indices.dtype}")
    if self_loops and indptr.shape[0] - 1 > x.shape[0]:
        raise ValueError(f"self_loops needs a row of x for each of the {indptr.shape[0] - 1} rows of indptr; x has {x.shape[0]}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, not {dropout}")
    if isinstance(seed, Tensor):
        if not (x.is_cuda and seed.device == x.device and seed.dtype == torch.int64 and seed.numel() == 1):
            raise ValueError(f"a seed that is a tensor must be one int64 on the GPU of x, not {seed.dtype} on {seed.device}")
    elif not 0 <= seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2**63 - 1, not {seed}")
    if not math.isfinite(slope):
        raise ValueError(f"slope must be a finite number, not {slope}")
    if whole is not None:
        whole.check_shape(indptr.shape[0] - 1)


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must be {meaning}, here {shape}, not of shape {tuple(tensor.shape)}")
    if not tensor.dtype.is_floating_point:
        raise ValueError(f"{name} must hold floating-point numbers, not {tensor.dtype}")


def _place(whole: Whole | None, dropout: float) -> tuple[Tensor | None, Tensor | None, int]:
    """The whole as an op takes it: without dropout nothing depends on it."""
    return (None, None, 0) if whole is None or dropout == 0 else (whole.rows.contiguous(), whole.begins.contiguous(), whole.entries)


def _transposed(reverse: Rows | None, indices: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if reverse is None:
        return None, None, None
    if len(reverse.indices) != len(indices):
        raise ValueError(f"reverse has {len(reverse.indices)} entries, the rows have {len(indices)}: it is of another graph")
    return reverse.indptr, reverse.indices, reverse.permutation
