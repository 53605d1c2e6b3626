"""Dropout, with relu if asked, in one pass: what is dropped is a function of a seed and the element's position.

Philox makes 16 random bits per element, so nothing is stored for the gradient: it draws the same mask again, or, after relu, lets
through what came out above zero. Any number of threads gives the same bits. (torch's own draws one number after the
other in one thread, which takes longer than the layer around it.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_argument, thread_count
from headrace.kernels._aggregate.work import sum_type
from headrace.kernels._direct import direct
from headrace.kernels._on_gpu import on_gpu

_BITS = 1 << 16


def dropout(x: Tensor, rate: float = 0.5, *, relu: bool = False, seed: int | None = None, threads: int | None = None) -> Tensor:
    """`x` (or `relu(x)`) with a share `rate` of its elements set to 0, the others scaled up so that the mean stays.

    `rate` is rounded to a multiple of 2**-16. Without a `seed` one is drawn from torch's generator, so that
    `torch.manual_seed` decides.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be from 0 to 1, not {rate}")
    if rate == 0:
        return torch.relu(x) if relu else x
    if seed is not None and not 0 <= seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2**63 - 1, not {seed}")
    out: Tensor = _call(x, _dropped(rate), relu, seed_for(x) if seed is None else seed, thread_argument(threads))
    return out


def dropout_reference(x: Tensor, rate: float, *, relu: bool = False, seed: int = 0) -> Tensor:
    """The same in plain torch, but for the mask."""
    x = torch.relu(x) if relu else x
    if rate == 0:
        return x
    dropped, wide = _dropped(rate), sum_type(x.dtype)
    scaled = x.to(wide) * (_BITS / max(_BITS - dropped, 1))  # rounded once, at the end
    return torch.where(_kept(x, dropped, seed), scaled, 0).to(x.dtype)


def draw_seed(generator: torch.Generator | None = None) -> int:
    """A seed from torch's generator (or another): what every random kernel uses when it is given none."""
    return int(torch.randint(0, 2**62, (), generator=generator).item())


def seed_for(x: Tensor) -> int | Tensor:
    """`draw_seed`, or while a CUDA graph of work on `x` is captured a seed that the device draws at every replay."""
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return torch.randint(0, 2**62, (1,), device=x.device)
    return draw_seed()


def _dropped(rate: float) -> int:
    """How many of 2**16 draws drop an element: at least one, unless the rate is 0."""
    return min(max(round(rate * _BITS), 1), _BITS)


def _kept(x: Tensor, dropped: int, seed: int) -> Tensor:
    ones, out = torch.ones(x.shape), torch.zeros(x.shape)
    if dropped < _BITS:
        _native.dropout(ones, out, seed=seed, dropped=dropped, scale=1.0, relu=False, gate=None, threads=1)
    return out > 0


def _run(x: Tensor, dropped: int, relu: bool, seed: int | Tensor, gate: Tensor | None, threads: int) -> Tensor:
    if dropped == _BITS:
        return torch.zeros_like(x, memory_format=torch.contiguous_format)
    if x.device.type != "cpu":
        dropped_rows: Tensor = on_gpu("_dropout.triton_dropout").dropout(x, dropped=dropped, relu=relu, seed=seed, gate=gate)
        return dropped_rows
    if not isinstance(seed, int):
        raise TypeError(f"seed must be a whole number on a CPU, not {type(seed).__name__}")
    x = x.contiguous()
    out = torch.empty_like(x)
    _native.dropout(
        x.detach(),
        out,
        seed=seed,
        dropped=dropped,
        scale=_BITS / (_BITS - dropped),
        relu=relu,
        gate=None if gate is None else gate.detach().contiguous(),
        threads=thread_count(threads or None),
    )
    return out


def _run_forward(x: Tensor, dropped: int, relu: bool, seed: int, threads: int) -> Tensor:
    return _run(x, dropped, relu, seed, None, threads)


_dropout = torch.library.custom_op("headrace::dropout", _run_forward, mutates_args=())


@_dropout.register_fake
def _(x: Tensor, dropped: int, relu: bool, seed: int, threads: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _run_backward(grad: Tensor, gate: Tensor | None, dropped: int, seed: int, threads: int) -> Tensor:
    return _run(grad, dropped, False, seed, gate, threads)


_dropout_backward = torch.library.custom_op("headrace::dropout_backward", _run_backward, mutates_args=())


@_dropout_backward.register_fake
def _(grad: Tensor, gate: Tensor | None, dropped: int, seed: int, threads: int) -> Tensor:
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def _remember(ctx, inputs, output):  # type: ignore[no-untyped-def]
    _, ctx.dropped, ctx.relu, ctx.seed, ctx.threads = inputs
    ctx.save_for_backward(output if ctx.relu else None)


def _gradient(run: Callable[..., Any]) -> Callable[..., Any]:
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (gate,) = ctx.saved_tensors
        return run(grad.contiguous(), gate, ctx.dropped, ctx.seed, ctx.threads), None, None, None, None

    return backward


_dropout.register_autograd(_gradient(_dropout_backward), setup_context=_remember)
_call = direct(_dropout, _run_forward, _remember, _gradient(_run_backward))
