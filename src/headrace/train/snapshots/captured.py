"""Forward and backward of a piece of work as one captured CUDA graph: pieces over one graph have one shape, and one launch.

What a piece reads (rows, kept sums, targets) is copied to where the recording reads it. A recording is a function of its shape
alone, so that a run that is resumed has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headrace._capture import recording

_WARM = 2  # runs before a recording, which make what is made once


class Recorded:
    """The loss of `inputs`, and its gradients, recorded. `loss` must compute on these tensors alone and wait for nothing.

    after: another recording whose memory this one may use again, where nobody reads what that one left.
    """

    def __init__(
        self,
        loss: Callable[[Sequence[Tensor]], Tensor],
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
        device: torch.device,
        after: Recorded | None = None,
    ) -> None:
        self.inputs = [values.clone() for values in inputs]
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.random.fork_rng([device]):  # what is tried out here draws no numbers of the run
            with torch.cuda.stream(stream):
                for _ in range(_WARM):
                    torch.autograd.grad(loss(self.inputs), list(parameters), allow_unused=True)
            torch.cuda.current_stream(device).wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with recording(self.graph, stream, None if after is None else after.graph.pool()):
                made = loss(self.inputs)
                self.gradients: list[Tensor | None] = list(torch.autograd.grad(made, list(parameters), allow_unused=True))
        self.loss = made.detach()

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """Loss and gradients, in memory that the next replay overwrites."""
        for place, values in zip(self.inputs, inputs, strict=True):
            place.copy_(values)
        self.graph.replay()
        return self.loss, self.gradients
