"""Work on several streams of a GPU: each stage on its own, so that sampling, gathering and training overlap."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def receive(stream: torch.cuda.Stream, ended: torch.cuda.Event, tensors: Iterable[Tensor | None]) -> None:
    """Let `stream` use what another stream computed: it waits for `ended`, the host does not.

    The memory of `tensors` was taken on another stream, so the allocator is told that this one uses it: it is not handed out again
    before what this stream now does with them has ended.
    """
    stream.wait_event(ended)
    for tensor in tensors:
        if tensor is not None and tensor.is_cuda:
            tensor.record_stream(stream)


@dataclass(frozen=True)
class Fenced:
    """An item whose kernels may still be under way. `ended` comes after them on the stream of the stage that launched them."""

    item: Any
    ended: torch.cuda.Event
    device: torch.device

    def receive(self, tensors: Iterable[Tensor]) -> Any:
        """The item, for use on the current stream of its device; `tensors` are those it holds."""
        receive(torch.cuda.current_stream(self.device), self.ended, tensors)
        return self.item


class OnStream:
    """The work of a stage, done on its stream: takes items or `Fenced` ones, gives `Fenced` ones."""

    def __init__(self, work: Callable[[Any], Any], stream: torch.cuda.Stream) -> None:
        self.work, self.stream = work, stream

    def __call__(self, item: Any) -> Fenced:
        with torch.cuda.stream(self.stream):
            if isinstance(item, Fenced):  # the batch keeps what it holds until its consumer is done: no tensors to name
                receive(self.stream, item.ended, ())
                item = item.item
            result, ended = self.work(item), self.stream.record_event()
        return Fenced(result, ended, self.stream.device)


class InTurn:
    """Lets one block after the other work on some memory, on a GPU also after what other threads queued on their streams.

    `memory`: a tensor that may be freed while a stream of an earlier turn still works on it.
    """

    def __init__(self, device: torch.device, memory: Tensor | None = None) -> None:
        self._device, self._lock, self._memory = device, threading.Lock(), memory
        self._last: torch.cuda.Event | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._last is not None:
            receive(torch.cuda.current_stream(self._device), self._last, (self._memory,))

    def __exit__(self, *_: object) -> None:
        if self._device.type == "cuda":
            self._last = torch.cuda.current_stream(self._device).record_event()
        self._lock.release()

    def settle(self) -> None:
        """Wait on the host until all work so far is done."""
        with self._lock:
            last = self._last
        if last is not None:
            last.synchronize()
