"""The gates of a GRU once its two products are there, in one pass over the rows and one for the gradient.

    reset  = sigmoid(input[:, 0] + hidden[:, 0])      update = sigmoid(input[:, 1] + hidden[:, 1])
    fresh  = tanh(input[:, 2] + reset * hidden[:, 2])     out = fresh + update * (memory - fresh)

Cho et al., "Learning phrase representations using RNN encoder-decoder", 2014, in the form of torch's `GRUCell`. On a CPU torch
computes a dozen tensors for them and as many for their gradient; here the three gates are kept. On a GPU torch has a kernel of its
own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_argument, thread_count
from headrace.kernels._direct import direct


def gru_gates(input: Tensor, hidden: Tensor, memory: Tensor, *, threads: int | None = None) -> Tensor:
    """New memory from what a GRU's products gave of its input and of its memory.  # [n, 3 d] x 2, [n, d] -> [n, d]

    >>> import torch
    >>> from headrace.kernels import gru_gates
    >>> gru_gates(torch.zeros(1, 6), torch.zeros(1, 6), torch.ones(1, 2))
    tensor([[0.5000, 0.5000]])
    """
    if memory.dim() != 2 or memory.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"memory must be float32 or float64 [n, d], not {memory.dtype} of shape {tuple(memory.shape)}")
    wanted = (len(memory), 3 * memory.shape[1])
    for name, tensor in {"input": input, "hidden": hidden}.items():
        if tensor.shape != wanted or tensor.dtype != memory.dtype or tensor.device != memory.device:
            raise ValueError(
                f"{name} must be {memory.dtype} of shape {wanted} on {memory.device}, "
                f"not {tensor.dtype} of {tuple(tensor.shape)} on {tensor.device}"
            )
    if memory.device.type != "cpu":
        return gru_gates_reference(input, hidden, memory)
    out: Tensor = _call(input.contiguous(), hidden.contiguous(), memory.contiguous(), thread_argument(threads))[0]
    return out


def gru_gates_reference(input: Tensor, hidden: Tensor, memory: Tensor) -> Tensor:
    """The same in plain torch."""
    i_reset, i_update, i_fresh = input.chunk(3, dim=1)
    h_reset, h_update, h_fresh = hidden.chunk(3, dim=1)
    fresh = torch.tanh(i_fresh + torch.sigmoid(i_reset + h_reset) * h_fresh)
    return fresh + torch.sigmoid(i_update + h_update) * (memory - fresh)


def _run(input: Tensor, hidden: Tensor, memory: Tensor, threads: int) -> tuple[Tensor, Tensor]:
    """New memory, and the gates."""
    out, gates = torch.empty_like(memory), torch.empty_like(input)
    _native.gru(input.detach(), hidden.detach(), memory.detach(), gates, out, threads=thread_count(threads or None))
    return out, gates


def _run_backward(
    grad: Tensor, gates: Tensor, hidden: Tensor, memory: Tensor, threads: int, need_memory: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, hidden and memory; the last is empty where it is not needed."""
    to_input, to_hidden = torch.empty_like(gates), torch.empty_like(gates)
    to_memory = torch.empty_like(memory) if need_memory else memory.new_empty(0)
    wanted = to_memory if need_memory else None
    threads = thread_count(threads or None)
    _native.gru_gradient(grad, gates, hidden.detach(), memory.detach(), to_input, to_hidden, wanted, threads=threads)
    return to_input, to_hidden, to_memory


def _remember(ctx, inputs, output):  # type: ignore[no-untyped-def]
    _, hidden, memory, threads = inputs
    _, gates = output
    ctx.mark_non_differentiable(gates)
    ctx.save_for_backward(gates, hidden, memory)
    ctx.threads = threads


def _gradient(backward: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Callable[..., Any]:
    def of(ctx, grad, _gates):  # type: ignore[no-untyped-def]
        need_memory = ctx.needs_input_grad[2]
        to_input, to_hidden, to_memory = backward(grad.contiguous(), *ctx.saved_tensors, ctx.threads, need_memory)
        return to_input, to_hidden, to_memory if need_memory else None, None

    return of


_op = torch.library.custom_op("headrace::gru_gates", _run, mutates_args=())
_backward_op = torch.library.custom_op("headrace::gru_gates_backward", _run_backward, mutates_args=())


@_op.register_fake
def _(input: Tensor, hidden: Tensor, memory: Tensor, threads: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(memory), torch.empty_like(input)


@_backward_op.register_fake
def _(
    grad: Tensor, gates: Tensor, hidden: Tensor, memory: Tensor, threads: int, need_memory: bool
) -> tuple[Tensor, Tensor, Tensor]:
    to_memory = torch.empty_like(memory) if need_memory else memory.new_empty(0)
    return torch.empty_like(gates), torch.empty_like(gates), to_memory


_op.register_autograd(_gradient(_backward_op), setup_context=_remember)
_call = direct(_op, _run, _remember, _gradient(_run_backward))
