"""Stages on a GPU: each works on a stream of its own, so that sampling, gathering and training overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Fenced:
    """An item whose kernels may still be under way. `ended` comes after them on the stream of the stage that launched them."""

    item: Any
    ended: torch.cuda.Event
    device: torch.device

    def receive(self, tensors: Iterable[Tensor]) -> Any:
        """The item, for use on the current stream of its device, which waits for the kernels; the host does not.

        `tensors` are those it holds. Their memory was taken on another stream, so the allocator is told that this one uses it: it
        is not handed out again before what this stream now does with them has ended.
        """
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(self.ended)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(stream)
        return self.item


class OnStream:
    """The work of a stage, done on its stream: takes items or `Fenced` ones, gives `Fenced` ones."""

    def __init__(self, work: Callable[[Any], Any], stream: torch.cuda.Stream) -> None:
        self.work, self.stream = work, stream

    def __call__(self, item: Any) -> Fenced:
        with torch.cuda.stream(self.stream):
            if isinstance(item, Fenced):  # what it holds is kept by the batch until its consumer is done, so no more is to be told
                self.stream.wait_event(item.ended)
                item = item.item
            done = self.work(item)
            ended = torch.cuda.Event()
            ended.record(self.stream)
        return Fenced(done, ended, self.stream.device)
