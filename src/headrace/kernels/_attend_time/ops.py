"""The custom op under `attend_time`: what torch records, and what it calls for the gradients.

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
from headrace.kernels._attend_time import gpu as _gpu
from headrace.kernels._attend_time.events import Events
from headrace.kernels._direct import direct

_INPUTS = (
    "Tensor query, Tensor indptr, Tensor indices, Tensor dt, Tensor x, Tensor time_weight, Tensor time_bias, Tensor? edge_x, "
    "Tensor? edge_id, float slope, float dropout, int seed, int threads"
)
_FORWARD = f"({_INPUTS}) -> (Tensor, Tensor, Tensor)"
_BACKWARD = (
    f"(Tensor grad, Tensor out, Tensor score, Tensor peak, {_INPUTS}, bool need_x, bool need_time) -> (Tensor, Tensor, Tensor)"
)
_TENSORS = 9  # inputs that are tensors
_QUERY, _X, _TIME_WEIGHT, _TIME_BIAS = 0, 4, 5, 6


def _events(inputs: tuple[Any, ...]) -> Events:
    tensors: list[Any] = [None if tensor is None else tensor.detach() for tensor in inputs[:_TENSORS]]
    return Events(*tensors, *inputs[_TENSORS : _TENSORS + 3])


def _run(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The sums, the score of each entry and head, and per row and head the largest and 1 / the sum of exp(score - largest)."""
    events, threads = _events(inputs), inputs[-1]
    out, score, peak = _outputs(events)
    if events.x.device.type != "cpu":
        _gpu.forward(events, out, score, peak)
        return out, score, peak
    _check_on_cpu(events)
    threads = thread_count(threads or None)
    try:
        _native.attend_time(*events.tensors, out=out, score=score, peak=peak, **events.options, threads=threads)
    except ValueError as error:
        message = str(error)
        if "out of range" in message:
            ids = {"indices": (events.indices, len(events.x))}
            if events.edge_x is not None and events.edge_id is not None:
                ids["edge_id"] = events.edge_id, len(events.edge_x)
            message = what_is_wrong(ids, threads) or message
        raise ValueError(message) from None
    return out, score, peak


def _run_backward(grad: Tensor, out: Tensor, score: Tensor, peak: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, x and, in one tensor, of time_weight and time_bias. One that is not needed is empty."""
    events, (threads, need_x, need_time) = _events(inputs), inputs[-3:]
    grad_query, grad_x, grad_time = _gradients(events, need_x, need_time)
    wanted: dict[str, Any] = {
        "grad_query": grad_query,
        "grad_x": grad_x if need_x else None,
        "grad_time": grad_time if need_time else None,
    }
    if events.x.device.type != "cpu":
        _gpu.backward(grad, out, score, peak, events, **wanted)
        return grad_query, grad_x, grad_time
    threads = thread_count(threads or None)
    transpose: tuple[Any, Any, Any] = (None, None, None)
    if need_x:
        named = events.indices[: int(events.indptr[-1])]  # without the room behind the last row
        transpose = _native.transpose_csr(events.indptr, named, len(events.x), positions=True, threads=threads)
    arguments: dict[str, Any] = {**events.named, **wanted, **events.options, "threads": threads}
    arguments |= zip(("t_indptr", "t_indices", "t_position"), transpose, strict=True)
    _native.attend_time_gradient(grad, out, score, peak, **arguments)
    return grad_query, grad_x, grad_time


def _outputs(events: Events) -> tuple[Tensor, Tensor, Tensor]:
    query, (heads, rows, _) = events.query, events.query.shape
    return torch.empty_like(query), query.new_empty(len(events.indices), heads), query.new_empty(rows, 2, heads)


def _gradients(events: Events, need_x: bool, need_time: bool) -> tuple[Tensor, Tensor, Tensor]:
    x, times = events.x, events.time_weight
    to_x = torch.empty_like(x) if need_x else x.new_empty(0)
    return torch.empty_like(events.query), to_x, times.new_empty(2, len(times) if need_time else 0)


def _check_on_cpu(events: Events) -> None:
    for name, tensor in events.named.items():
        if tensor is not None and tensor.device.type != "cpu":
            raise ValueError(f"{name} is on {tensor.device}; this kernel runs on CPU tensors")


def _fake_forward(*inputs):  # type: ignore[no-untyped-def]
    return _outputs(_events(inputs))


def _fake_backward(grad, out, score, peak, *inputs):  # type: ignore[no-untyped-def]
    return _gradients(_events(inputs), *inputs[-2:])


def _remember(ctx, inputs, output):  # type: ignore[no-untyped-def]
    out, score, peak = output
    ctx.mark_non_differentiable(score, peak)
    ctx.save_for_backward(out, score, peak, *inputs[:_TENSORS])
    ctx.options = inputs[_TENSORS:]


def _gradient(backward: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Callable[..., tuple[Tensor | None, ...]]:
    def of(ctx, grad, _score, _peak):  # type: ignore[no-untyped-def]
        saved = [t if t is None else t.detach() for t in ctx.saved_tensors]
        needs = ctx.needs_input_grad
        need_time = needs[_TIME_WEIGHT] or needs[_TIME_BIAS]
        query, x, time = backward(grad.detach().contiguous(), *saved, *ctx.options, needs[_X], need_time)
        gradients: list[Tensor | None] = [None] * len(needs)
        gradients[_QUERY] = query if needs[_QUERY] else None
        gradients[_X] = x if needs[_X] else None
        if need_time:
            gradients[_TIME_WEIGHT], gradients[_TIME_BIAS] = time.unbind(0)
        return tuple(gradients)

    return of


_op = torch.library.custom_op("headrace::attend_time", _run, mutates_args=(), schema=_FORWARD)
_backward_op = torch.library.custom_op("headrace::attend_time_backward", _run_backward, mutates_args=(), schema=_BACKWARD)
_op.register_fake(_fake_forward)
_backward_op.register_fake(_fake_backward)
_op.register_autograd(_gradient(_backward_op), setup_context=_remember)
attend_time = direct(_op, _run, _remember, _gradient(_run_backward))
