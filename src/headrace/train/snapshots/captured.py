"""Forward and backward of a piece of work as one captured CUDA graph: pieces over one graph have one shape, and one launch.

What a piece reads (rows, kept sums, targets) is copied to where the recording reads it. A recording is a function of its shape
alone, so that a run that is resumed has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headrace._capture import Recorded
from headrace.train.snapshots.joint import differentiated


class RecordedPiece:
    """The loss of `inputs`, and its gradients, recorded. `loss` must compute on these tensors alone and wait for nothing.

    after: another recording whose memory this one may use again, where nobody reads what that one left.
    """

    def __init__(
        self,
        loss: Callable[[Sequence[Tensor]], Tensor],
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
        device: torch.device,
        after: RecordedPiece | None = None,
    ) -> None:
        self.inputs = [values.clone() for values in inputs]

        def work() -> tuple[Tensor, list[Tensor | None]]:
            made = loss(self.inputs)
            return made.detach(), differentiated(made, parameters)

        earlier = None if after is None else after.recorded
        self.recorded: Recorded[tuple[Tensor, list[Tensor | None]]] = Recorded(work, device, earlier)

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
        """Loss and gradients, in memory that the next replay overwrites."""
        for place, values in zip(self.inputs, inputs, strict=True):
            place.copy_(values)
        return self.recorded.replay()
