"""The custom ops under `attend` and `attend_pairs`: what torch records, and what it calls for their gradients.

Both ops have the same arguments but for the fourth and fifth: (source, target) of GAT, (target, attention) of GATv2. Called
directly, a seed may be a tensor on the device: what is captured then draws anew at every replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_count
from headrace.kernels._attend import gpu as _attend_gpu
from headrace.kernels._direct import direct


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """The type of scores and sums of rows of this type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _run_attend(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    source: Tensor,
    target: Tensor,
    t_indptr: Tensor | None,
    t_indices: Tensor | None,
    t_permutation: Tensor | None,
    slope: float,
    self_loops: bool,
    dropout: float,
    seed: int,
    threads: int,
) -> tuple[Tensor, Tensor]:
    """The output, and per row and head the largest score and 1 / the sum of exp(score - largest).

    Two numbers and not their log-sum-exp: fp32 would lose the digits of small differences between large scores.
    """
    return _forward(x, indptr, indices, source, target, None, slope, self_loops, dropout, seed, threads)


def _run_attend_pairs(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    target: Tensor,
    attention: Tensor,
    t_indptr: Tensor | None,
    t_indices: Tensor | None,
    t_permutation: Tensor | None,
    slope: float,
    self_loops: bool,
    dropout: float,
    seed: int,
    threads: int,
) -> tuple[Tensor, Tensor]:
    """As `attend`, with GATv2's scores."""
    return _forward(x, indptr, indices, None, target, attention, slope, self_loops, dropout, seed, threads)


def _run_attend_backward(
    grad: Tensor,
    out: Tensor,
    peak: Tensor,
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    source: Tensor,
    target: Tensor,
    t_indptr: Tensor | None,
    t_indices: Tensor | None,
    t_permutation: Tensor | None,
    slope: float,
    self_loops: bool,
    dropout: float,
    seed: int,
    threads: int,
    need_x: bool,
    need_source: bool,
    need_target: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, source and target. One that is not needed is an empty tensor: an op returns tensors."""
    grads = _like(x, need_x), _like(source, need_source), _like(target, need_target)
    asked = {
        "grad_x": grads[0] if need_x else None,
        "grad_source": grads[1] if need_source else None,
        "grad_target": grads[2] if need_target else None,
        "grad_attention": None,
    }
    given = {"source": source, "target": target, "attention": None, "slope": slope, "self_loops": self_loops}
    transpose = (t_indptr, t_indices, t_permutation)
    _backward(grad, out, peak, x, indptr, indices, transpose, threads, dropout=dropout, seed=seed, **asked, **given)
    return grads


def _run_attend_pairs_backward(
    grad: Tensor,
    out: Tensor,
    peak: Tensor,
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    target: Tensor,
    attention: Tensor,
    t_indptr: Tensor | None,
    t_indices: Tensor | None,
    t_permutation: Tensor | None,
    slope: float,
    self_loops: bool,
    dropout: float,
    seed: int,
    threads: int,
    need_x: bool,
    need_target: bool,
    need_attention: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, target and attention."""
    grads = _like(x, need_x), _like(target, need_target), _like(attention, need_attention)
    asked = {
        "grad_x": grads[0] if need_x else None,
        "grad_source": None,
        "grad_target": grads[1] if need_target else None,
        "grad_attention": grads[2] if need_attention else None,
    }
    given = {"source": None, "target": target, "attention": attention, "slope": slope, "self_loops": self_loops}
    transpose = (t_indptr, t_indices, t_permutation)
    _backward(grad, out, peak, x, indptr, indices, transpose, threads, dropout=dropout, seed=seed, **asked, **given)
    return grads


def _backward(
    grad: Tensor,
    out: Tensor,
    peak: Tensor,
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    transpose: tuple[Tensor | None, Tensor | None, Tensor | None],
    threads: int,
    **given: Any,
) -> None:
    if x.device.type != "cpu":
        _attend_gpu.backward(grad, peak, x, indptr, indices, transpose, **given)
        return
    threads = thread_count(threads or None)
    if given["grad_x"] is None and given["grad_source"] is None:
        transpose = None, None, None
    elif any(part is None for part in transpose) or len(transpose[0]) != len(x) + 1:  # type: ignore[arg-type]
        transpose = _native.transpose_csr(indptr, indices, len(x), positions=True, threads=threads)  # type: ignore[assignment]
    given |= dict(zip(("t_indptr", "t_indices", "t_position"), transpose, strict=True))
    _native.attend_gradient(grad, out, peak, x, indptr, indices, threads=threads, **given)


def _like(tensor: Tensor, needed: bool) -> Tensor:
    return torch.empty_like(tensor) if needed else tensor.new_empty(0)


def _forward(
    x: Tensor,
    indptr: Tensor,
    indices: Tensor,
    source: Tensor | None,
    target: Tensor,
    attention: Tensor | None,
    slope: float,
    self_loops: bool,
    dropout: float,
    seed: int,
    threads: int,
) -> tuple[Tensor, Tensor]:
    if x.device.type != "cpu":
        given = {"source": source, "target": target, "attention": attention, "slope": slope, "self_loops": self_loops}
        given = {name: value.detach() if isinstance(value, Tensor) else value for name, value in given.items()}
        return _attend_gpu.forward(x.detach(), indptr, indices, **given, dropout=dropout, seed=seed)
    named = {"x": x, "indptr": indptr, "indices": indices, "source": source, "target": target, "attention": attention}
    for name, tensor in named.items():
        if tensor is not None and tensor.device.type != "cpu":
            raise ValueError(f"{name} is on {tensor.device}; this kernel runs on CPU tensors")
    out, peak = _outputs(x, indptr)
    threads = thread_count(threads or None)
    try:
        _native.attend(
            x.detach(),
            indptr,
            indices,
            out,
            peak,
            source=None if source is None else source.detach(),
            target=target.detach(),
            attention=None if attention is None else attention.detach(),
            slope=slope,
            self_loops=self_loops,
            dropout=dropout,
            seed=seed,
            threads=threads,
        )
    except ValueError as error:
        message = str(error)
        if "out of range" in message and len(indices):  # the kernel only says that one is: it checks while it reads
            low, high = _native.id_range(indices, threads)
            if low < 0 or high >= len(x):
                message = (
                    f"indices holds values from {low} to {high}, but an index is out of range unless it is from 0 to {len(x) - 1}"
                )
        raise ValueError(message) from None
    return out, peak


def _outputs(x: Tensor, indptr: Tensor) -> tuple[Tensor, Tensor]:
    rows, heads = indptr.shape[0] - 1, x.shape[1]
    return x.new_empty(rows, heads, x.shape[2]), x.new_empty(rows, 2, heads, dtype=sum_type(x.dtype))


def _fake_forward(x, indptr, *_):  # type: ignore[no-untyped-def]
    return _outputs(x, indptr)


def _fake_backward(grad, out, peak, x, indptr, indices, fourth, fifth, *others):  # type: ignore[no-untyped-def]
    return tuple(_like(tensor, needed) for tensor, needed in zip((x, fourth, fifth), others[-3:], strict=True))


def _remember(ctx, inputs, output):  # type: ignore[no-untyped-def]
    out, peak = output
    ctx.mark_non_differentiable(peak)
    ctx.save_for_backward(out, peak, *inputs[:8])
    ctx.options = inputs[8:]


def _gradient(backward: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Callable[..., tuple[Tensor | None, ...]]:
    def of(ctx, grad, _peak):  # type: ignore[no-untyped-def]
        saved = [t if t is None else t.detach() for t in ctx.saved_tensors]
        needed = [ctx.needs_input_grad[i] for i in (0, 3, 4)]
        found = backward(grad.detach().contiguous(), *saved, *ctx.options, *needed)
        grad_x, fourth, fifth = (g if need else None for g, need in zip(found, needed, strict=True))
        return (grad_x, None, None, fourth, fifth, *[None] * 8)

    return of


def _registered(name: str, run: Callable[..., Any], run_backward: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    op = torch.library.custom_op(f"headrace::{name}", run, mutates_args=())
    backward_op = torch.library.custom_op(f"headrace::{name}_backward", run_backward, mutates_args=())
    op.register_fake(_fake_forward)
    backward_op.register_fake(_fake_backward)
    op.register_autograd(_gradient(backward_op), setup_context=_remember)
    return direct(op, run, _remember, _gradient(run_backward))


attend = _registered("attend", _run_attend, _run_attend_backward)
attend_pairs = _registered("attend_pairs", _run_attend_pairs, _run_attend_pairs_backward)
