"""The custom ops under `attend` and `attend_pairs`: what torch records, and what it calls for their gradients.

Both ops have the same arguments but for what `fourth` and `fifth` are: (source, target) of GAT, (target, attention) of GATv2.
Called directly, a seed may be a tensor on the device: what is captured then draws anew at every replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_count
from headrace.kernels._aggregate.ops import what_is_wrong
from headrace.kernels._aggregate.work import sum_type
from headrace.kernels._attend import gpu as _attend_gpu
from headrace.kernels._attend.scores import Scores
from headrace.kernels._attend.whole import Whole
from headrace.kernels._direct import direct

_INPUTS = (
    "Tensor x, Tensor indptr, Tensor indices, Tensor fourth, Tensor fifth, Tensor? t_indptr, Tensor? t_indices, "
    "Tensor? t_permutation, Tensor? whole_rows, Tensor? whole_begins, int whole_entries, float slope, bool self_loops, "
    "float dropout, int seed, int threads"
)
_FORWARD = f"({_INPUTS}) -> (Tensor, Tensor)"
_BACKWARD = (
    f"(Tensor grad, Tensor out, Tensor peak, {_INPUTS}, bool need_x, bool need_fourth, bool need_fifth) -> (Tensor, Tensor, Tensor)"
)
Runs = tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., tuple[Tensor, Tensor, Tensor]]]


def _runs(fourth_name: str, fifth_name: str) -> Runs:
    """What an op calls, forwards and backwards, whose `fourth` and `fifth` are these fields of `Scores`."""

    def scored(inputs: tuple[Any, ...]) -> Scores:
        parts: dict[str, Any] = {fourth_name: inputs[3].detach(), fifth_name: inputs[4].detach()}
        numbers = dict(zip(("slope", "self_loops", "dropout", "seed"), inputs[11:15], strict=True))
        return Scores(**parts, **numbers, **_placed(inputs[1], *inputs[8:11]))

    def run(*inputs: Any) -> tuple[Tensor, Tensor]:
        """The output, and per row and head the largest score and 1 / the sum of exp(score - largest).

        Two numbers and not their log-sum-exp: fp32 would lose the digits of small differences between large scores.
        """
        x, indptr, indices = inputs[:3]
        return run_forward(x, indptr, indices, scored(inputs), inputs[-1])

    def run_backward(grad: Tensor, out: Tensor, peak: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of x, fourth and fifth. One that is not needed is an empty tensor: an op returns tensors."""
        x, indptr, indices, fourth, fifth = inputs[:5]
        transpose, threads, needs = inputs[5:8], inputs[-4], inputs[-3:]
        scores = scored(inputs)
        grads = _like(x, needs[0]), _like(fourth, needs[1]), _like(fifth, needs[2])
        wanted: dict[str, Any] = dict.fromkeys(("grad_x", "grad_source", "grad_target", "grad_attention"))
        for name, gradient, needed in zip(("x", fourth_name, fifth_name), grads, needs, strict=True):
            wanted[f"grad_{name}"] = gradient if needed else None
        if x.device.type != "cpu":
            _attend_gpu.backward(grad, peak, x, indptr, indices, transpose, scores, **wanted)
            return grads
        threads = thread_count(threads or None)
        if wanted["grad_x"] is None and wanted["grad_source"] is None:
            transpose = None, None, None
        elif any(part is None for part in transpose) or len(transpose[0]) != len(x) + 1:
            transpose = _native.transpose_csr(indptr, indices, len(x), positions=True, threads=threads)
        reverse: dict[str, Any] = dict(zip(("t_indptr", "t_indices", "t_position"), transpose, strict=True))
        _native.attend_gradient(grad, out, peak, x, indptr, indices, **wanted, **reverse, **attend_options(scores), threads=threads)
        return grads

    return run, run_backward


def attend_options(scores: Scores) -> dict[str, Any]:
    """Scores as native kernels take them."""
    numbers = {"slope": scores.slope, "self_loops": scores.self_loops, "dropout": scores.dropout, "seed": scores.seed}
    place = {"shift": scores.shift, "whole_rows": scores.whole_rows, "whole_entries": scores.whole_entries}
    return {**scores.tensors, **numbers, **place}


def _placed(indptr: Tensor, rows: Tensor | None, begins: Tensor | None, entries: int) -> dict[str, Any]:
    """What `Scores` say of rows that are part of a whole."""
    if rows is None or begins is None:
        return {}
    for name, tensor in {"whole.rows": rows, "whole.begins": begins}.items():
        if tensor.device != indptr.device:
            raise ValueError(f"{name} is on {tensor.device}, indptr is on {indptr.device}: move them to one device")
    return {"shift": Whole(rows, begins, entries).shift(indptr), "whole_rows": rows, "whole_entries": entries}


def _like(tensor: Tensor, needed: bool) -> Tensor:
    return torch.empty_like(tensor) if needed else tensor.new_empty(0)


def run_forward(x: Tensor, indptr: Tensor, indices: Tensor, scores: Scores, threads: int) -> tuple[Tensor, Tensor]:
    """The output and the peak of every row."""
    if x.device.type != "cpu":
        return _attend_gpu.forward(x.detach(), indptr, indices, scores)
    for name, tensor in {"indptr": indptr, "indices": indices, **scores.tensors}.items():
        if tensor is not None and tensor.device.type != "cpu":
            raise ValueError(f"{name} is on {tensor.device}; this kernel runs on CPU tensors")
    out, peak = _outputs(x, indptr)
    threads = thread_count(threads or None)
    try:
        _native.attend(x.detach(), indptr, indices, out, peak, **attend_options(scores), threads=threads)
    except ValueError as error:
        message = str(error)
        if "out of range" in message:
            message = what_is_wrong({"indices": (indices, len(x))}, threads) or message
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
    ctx.save_for_backward(out, peak, *inputs[:10])
    ctx.options = inputs[10:]


def _gradient(backward: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Callable[..., tuple[Tensor | None, ...]]:
    def of(ctx, grad, _peak):  # type: ignore[no-untyped-def]
        saved = [t if t is None else t.detach() for t in ctx.saved_tensors]
        needed = [ctx.needs_input_grad[i] for i in (0, 3, 4)]
        gradients = backward(grad.detach().contiguous(), *saved, *ctx.options, *needed)
        grad_x, fourth, fifth = (g if need else None for g, need in zip(gradients, needed, strict=True))
        return (grad_x, None, None, fourth, fifth, *[None] * 11)

    return of


def _registered(name: str, fourth: str, fifth: str) -> Callable[..., tuple[Tensor, Tensor]]:
    run, run_backward = _runs(fourth, fifth)
    op = torch.library.custom_op(f"headrace::{name}", run, mutates_args=(), schema=_FORWARD)
    backward_op = torch.library.custom_op(f"headrace::{name}_backward", run_backward, mutates_args=(), schema=_BACKWARD)
    op.register_fake(_fake_forward)
    backward_op.register_fake(_fake_backward)
    op.register_autograd(_gradient(backward_op), setup_context=_remember)
    return direct(op, run, _remember, _gradient(run_backward))


attend = _registered("attend", "source", "target")
attend_pairs = _registered("attend_pairs", "target", "attention")
