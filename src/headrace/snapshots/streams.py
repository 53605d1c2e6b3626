"""Where the sums of a chain are made: on the stream of all else, or on another stream of the GPU, beside its products.

Autograd's engine puts a gradient on the stream of its operator, and lets the consumer's stream wait for it at once: whatever is
launched there next would wait too, though it be another group's. So to the engine all is on one stream, and a sum is three nodes:
`_Leave` marks when its rows are made, `_Sum` makes it on the other stream, `_Arrive` waits for it. Backward each is run in the
place that mirrors its own, since the engine takes nodes in the opposite order of their making: waits come as late there.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from headrace.nn.neighbor_sum import Asked, leaving_room
from headrace.pipeline import Fenced, OnStream


class Place(Protocol):
    """Makes sums that chains ask for: `leave` when one is asked for, `issue` when its turn has come, `take` when it is needed."""

    def begin(self) -> None: ...

    def leave(self, asked: Asked) -> Any: ...

    def issue(self, left: Any) -> Any: ...

    def take(self, issued: Any) -> Tensor: ...

    def end(self) -> None: ...


class OneStream:
    """Sums are made where all else is, when their turn has come."""

    def begin(self) -> None:
        """Nothing is to be prepared."""

    def leave(self, asked: Asked) -> Asked:
        return asked

    def issue(self, left: Asked) -> Tensor:
        return left.work(left.x)

    def take(self, issued: Tensor) -> Tensor:
        return issued

    def end(self) -> None:
        """All is where it was."""


@dataclass(eq=False)
class _Call:
    """A sum on the other stream: events that say when what it reads is made, and when it has ended, forward and back."""

    on: TwoStreams
    work: Any
    ready: Any = None
    held: list[Any] = field(default_factory=list)  # read by the other stream: not free before that has ended
    ended: Fenced | None = None


class TwoStreams:
    """Sums are made on a stream of their own.

    programs: how many of a sum may work at a time, so that products find room beside it; 0 for one for every block.
    first: whether programs of a sum take room that becomes free before those of products do.
    """

    def __init__(self, device: torch.device, *, programs: int = 0, first: bool = False) -> None:
        self.device, self.programs = device, programs
        self.stream = torch.cuda.Stream(device, priority=-1 if first else 0)
        self._begun: Any = None

    def begin(self) -> None:
        """Rows that nothing made since may be read from here on: features."""
        self._begun = self.mark()
        self.stream.wait_event(self._begun)

    def mark(self) -> Any:
        """An event after what the current stream was given so far."""
        return torch.cuda.current_stream(self.device).record_event()

    def leave(self, asked: Asked) -> tuple[_Call, Tensor]:
        call = _Call(self, asked.work)
        if asked.free:
            call.ready, call.held = self._begun, [asked.x]
            return call, asked.x
        return call, _Leave.apply(asked.x, call)  # type: ignore[no-untyped-call]

    def issue(self, left: tuple[_Call, Tensor]) -> tuple[_Call, Tensor]:
        call, x = left
        return call, _Sum.apply(x, call)  # type: ignore[no-untyped-call]

    def take(self, issued: tuple[_Call, Tensor]) -> Tensor:
        call, made = issued
        out: Tensor = _Arrive.apply(made, call)  # type: ignore[no-untyped-call]
        return out

    def end(self) -> None:
        """The current stream waits for all sums: what is recorded ends as one."""
        torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def there(self, call: _Call, work: Any, rows: Tensor) -> Tensor:
        """Do `work` with rows of the current stream on the other stream, once `call.ready` has come."""
        call.held.append(rows)
        with self._room():
            call.ended = OnStream(work, self.stream)(Fenced(rows, call.ready, self.device))
        made: Tensor = call.ended.item
        return made

    def back(self, call: _Call, made: Tensor) -> None:
        """Let the current stream wait for what a call made."""
        assert call.ended is not None
        call.ended.receive([made])
        call.held, call.ended = [], None

    def _room(self) -> AbstractContextManager[None]:
        return leaving_room(self.programs)


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, call: _Call) -> Tensor:
        ctx.call = call
        call.ready = call.on.mark()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.call.on.back(ctx.call, gradients[0])
        return gradients[0], None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, call: _Call) -> Tensor:
        def summed(rows: Tensor) -> Tensor:
            source = rows.detach().requires_grad_(ctx.needs_input_grad[0])
            with torch.set_grad_enabled(ctx.needs_input_grad[0]):
                out: Tensor = call.work(source)
            ctx.source, ctx.out, ctx.call = source, out, call
            return out.detach()

        return call.on.there(call, summed, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        def turned(gradient: Tensor) -> Tensor:
            made: Tensor = torch.autograd.grad(ctx.out, ctx.source, gradient)[0]
            ctx.out = ctx.source = None
            return made

        return ctx.call.on.there(ctx.call, turned, gradients[0]), None


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, made: Tensor, call: _Call) -> Tensor:
        ctx.call = call
        call.on.back(call, made)
        return made.view_as(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.call.ready = ctx.call.on.mark()
        return gradients[0], None
