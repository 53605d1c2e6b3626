"""`Copies`: to a GPU and back on streams of their own, so that those of one batch go on while another is computed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from headrace.pipeline.stream import receive


class Copies:
    """Between main memory and a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._up, self._down, self._ahead = (torch.cuda.Stream(device) for _ in range(3))

    def put(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], torch.cuda.Event]:
        """Copies on the GPU, and when they will have arrived: the host does not wait. What is on the GPU already stays as it is."""
        with torch.cuda.stream(self._up):
            moved = [x if x.is_cuda else x.pin_memory().to(self.device, non_blocking=True) for x in tensors]
            return moved, self.mark()

    def ahead(self) -> AbstractContextManager[None]:
        """Work in this block is on a stream of its own, and does not wait for a batch that is computed."""
        return torch.cuda.stream(self._ahead)

    def receive(self, tensors: Sequence[Tensor | None], arrived: torch.cuda.Event) -> None:
        """Let the current stream wait for what `put` sent, and keep its memory until this stream is done with it."""
        receive(torch.cuda.current_stream(self.device), arrived, tensors)

    def mark(self) -> torch.cuda.Event:
        """When all that was launched on the current stream so far will have ended."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def take(self, tensors: Sequence[Tensor], computed: torch.cuda.Event) -> list[Tensor]:
        """Copies in main memory, made once `computed` has come; the host waits for them."""
        with torch.cuda.stream(self._down):
            receive(self._down, computed, tensors)
            out = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
            for tensor, host in zip(tensors, out, strict=True):
                host.copy_(tensor, non_blocking=True)
            self.mark().synchronize()
        return out
