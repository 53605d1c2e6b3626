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
from headrace.kernels._random import philox, words_of

_BITS = 1 << 16


def dropout(
    x: Tensor,
    rate: float = 0.5,
    *,
    relu: bool = False,
    seed: int | None = None,
    rows: Tensor | int = 0,
    columns: tuple[int, int] | None = None,
    threads: int | None = None,
) -> Tensor:
    """`x` (or `relu(x)`) with a share `rate` of its elements set to 0, the others scaled up so that the mean stays.

    `rate` is rounded to a multiple of 2**-16. Without a `seed` one is drawn from torch's generator, so that
    `torch.manual_seed` decides.

    A slice of a whole is dropped as the whole is, if it is said which one `x` [n, w] is: with `columns=(first, count)` its
    columns are `first` to `first + w` of `count`; its rows are those from `rows` on, or those that the int64 tensor `rows` [n]
    names, in any order. A row's number is checked on a CPU alone.

    >>> import torch
    >>> from headrace.kernels import dropout
    >>> whole = torch.ones(6, 10)
    >>> part = dropout(whole[2:5, 3:7], seed=1, rows=2, columns=(3, 10))
    >>> torch.equal(part, dropout(whole, seed=1)[2:5, 3:7])
    True
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must be from 0 to 1, not {rate}")
    place = _place(x, rows, columns)
    if rate == 0:
        return torch.relu(x) if relu else x
    if seed is not None and not 0 <= seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2**63 - 1, not {seed}")
    out: Tensor = _call(x, _dropped(rate), relu, seed_for(x) if seed is None else seed, thread_argument(threads), *place)
    return out


def dropout_reference(
    x: Tensor,
    rate: float,
    *,
    relu: bool = False,
    seed: int = 0,
    rows: Tensor | int = 0,
    columns: tuple[int, int] | None = None,
) -> Tensor:
    """The same in plain torch."""
    position = _positions(x, *_place(x, rows, columns))
    x = torch.relu(x) if relu else x
    if rate == 0:
        return x
    dropped, wide = _dropped(rate), sum_type(x.dtype)
    scaled = x.to(wide) * (_BITS / max(_BITS - dropped, 1))  # rounded once, at the end
    return torch.where(_drawn(position, seed) >= dropped, scaled, 0).to(x.dtype)


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


def _place(x: Tensor, rows: Tensor | int, columns: tuple[int, int] | None) -> tuple[()] | tuple[Tensor | None, int, int]:
    """Rows, first and stride: where elements of x stand in the whole. Of the whole itself: nothing.

    Element j of row i stands at first + stride * rows[i] + j, rows[i] being i without rows. With neither rows nor stride the
    elements stand one after the other, from `first` on.
    """
    if columns is None and not isinstance(rows, Tensor) and rows == 0:
        return ()
    if x.dim() != 2:
        raise ValueError(f"rows and columns are of an x with two dimensions, not of shape {tuple(x.shape)}")
    height, width = x.shape
    if columns is None:
        columns = 0, width
    if not isinstance(columns, tuple) or len(columns) != 2:
        raise ValueError(f"columns must be (first column, columns of the whole), not {columns!r}")
    first, count = columns
    if first < 0 or first + width > count:
        raise ValueError(f"columns {columns} do not fit: {width} columns of x, from {first} on, of a whole with {count}")
    if isinstance(rows, Tensor):
        if rows.dtype != torch.int64 or rows.shape != (height,):
            raise ValueError(
                f"rows must be int64 of shape ({height},), a number per row of x, not {rows.dtype} of {tuple(rows.shape)}"
            )
        if rows.device != x.device:
            raise ValueError(f"rows is on {rows.device}, x is on {x.device}: move them to one device")
        return rows, first, count
    if rows < 0 or (rows + height) * count >= 2**63:
        raise ValueError(f"rows must be from 0 to where positions reach 2**63, not {rows} for {height} x {count} elements")
    return (None, rows * count, 0) if width == count else (None, rows * count + first, count)


def _positions(x: Tensor, rows: Tensor | None = None, first: int = 0, stride: int = 0) -> Tensor:
    if rows is None and stride == 0:
        return first + torch.arange(x.numel(), device=x.device).view(x.shape)
    numbers = torch.arange(len(x), device=x.device) if rows is None else rows
    return first + stride * numbers[:, None] + torch.arange(x.shape[1], device=x.device)


def _drawn(position: Tensor, seed: int) -> Tensor:
    """The 16 bits of the elements at these positions: eight to a block, the low half of a word first."""
    words = philox(_native.stream_key(seed, 0, 0, _native.Purpose.dropout), *words_of(position >> 3), torch.zeros_like(position))
    halves = torch.stack((words & 0xFFFF, words >> 16), dim=-1).flatten(-2)
    return halves.gather(-1, (position & 7).unsqueeze(-1)).squeeze(-1)


def _run(
    x: Tensor,
    dropped: int,
    relu: bool,
    seed: int | Tensor,
    gate: Tensor | None,
    threads: int,
    rows: Tensor | None,
    first: int,
    stride: int,
) -> Tensor:
    if dropped == _BITS:
        return torch.zeros_like(x, memory_format=torch.contiguous_format)
    rows = None if rows is None else rows.contiguous()
    if x.device.type != "cpu":
        kernels = on_gpu("_dropout.triton_dropout")
        dropped_rows: Tensor = kernels.dropout(
            x, dropped=dropped, relu=relu, seed=seed, gate=gate, rows=rows, first=first, stride=stride
        )
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
        rows=rows,
        first=first,
        stride=stride,
    )
    return out


def _run_forward(
    x: Tensor, dropped: int, relu: bool, seed: int, threads: int, rows: Tensor | None = None, first: int = 0, stride: int = 0
) -> Tensor:
    return _run(x, dropped, relu, seed, None, threads, rows, first, stride)


_dropout = torch.library.custom_op("headrace::dropout", _run_forward, mutates_args=())


@_dropout.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _run_backward(
    grad: Tensor,
    gate: Tensor | None,
    dropped: int,
    seed: int,
    threads: int,
    rows: Tensor | None = None,
    first: int = 0,
    stride: int = 0,
) -> Tensor:
    return _run(grad, dropped, False, seed, gate, threads, rows, first, stride)


_dropout_backward = torch.library.custom_op("headrace::dropout_backward", _run_backward, mutates_args=())


@_dropout_backward.register_fake
def _(grad: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(grad, memory_format=torch.contiguous_format)


def _remember(ctx, inputs, output):  # type: ignore[no-untyped-def]
    _, _, relu, _, _, *place = inputs  # which is empty for a whole
    ctx.how, ctx.numbers = inputs[1:5], place[1:]
    ctx.save_for_backward(output if relu else None, *place[:1])


def _gradient(run: Callable[..., Any]) -> Callable[..., Any]:
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        gate, *rows = ctx.saved_tensors
        dropped, _, seed, threads = ctx.how
        gradient = run(grad.contiguous(), gate, dropped, seed, threads, *rows, *ctx.numbers)
        return gradient, *[None] * (4 + len(rows) + len(ctx.numbers))

    return backward


_dropout.register_autograd(_gradient(_dropout_backward), setup_context=_remember)
_call = direct(_dropout, _run_forward, _remember, _gradient(_run_backward))
