"""Forward and backward of a training step as one captured CUDA graph.

A sampled step is a hundred small kernels, and launching them takes the host longer than running them takes a GPU. Here they are
recorded once, on memory of a fixed shape that holds nearly every batch, and then replayed with a single launch. (A fixed launch
plan over bounded sizes is the idea of ZeroGNN, 2026.) For a batch that does not fit there is a new recording with more room, a few
times; then such batches are computed as usual. Rooms are part of a run's state, since the bits of a product depend on its shape: a
run that is resumed records the room that it had.

A batch brings what is recorded: how much room it needs (`room`) and memory of that room which it can be copied into (`padded`), as
those of nodes (`loader.padded`) and of events (`temporal.joint`) do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any, Protocol

from torch import Tensor, nn

from headrace._capture import Recorded
from headrace.nn import GNN, TGN

_LOOK = 4  # batches computed as usual before the first recording, to see how large they are
_SPARE = 0.03
_RECORDINGS = 8  # after which batches that do not fit are no longer made room for
_STEPS = 16  # fewer do not earn a recording, which runs a step three times

Loss = Callable[[Any], tuple[Tensor, ...]]  # of a batch: the loss, and what else is asked of it, such as right predictions


class Room(Protocol):
    """What fits into a recording: a dataclass of tuples of numbers."""

    def alike(self, other: Any) -> bool:
        """Whether what is fixed about a recording, such as the number of seeds, is the same."""
        ...

    def holds(self, other: Any) -> bool:
        """Whether a batch that asks for `other` can be copied in."""
        ...

    def union(self, other: Any) -> Any:
        """Room for batches of either."""
        ...


class Twin(Protocol):
    """Memory of one shape that batches are copied into; the loss takes it in place of them."""

    def fill(self, batch: Any) -> None:
        """Copy a batch in; nothing waits for the device."""
        ...

    def rehearse(self, batch: Any) -> None:
        """Copy a batch in, so that its step leaves nothing behind but gradients."""
        ...


class Padding(Protocol):
    """A batch that can be replayed."""

    def room(self, *, spare: float = 0.0) -> Any:
        """The `Room` for this batch, and the share `spare` more for others like it."""
        ...

    def padded(self, room: Any, model: nn.Module) -> Twin:
        """Memory for batches of a room."""
        ...


def captures(model: nn.Module, capture: str, *, on_gpu: bool, sampled: bool, steps: int, pulls: bool = False) -> tuple[bool, str]:
    """Whether the steps of a run are recorded, and why, for its log.

    capture: as it was asked for. Left open ("auto"), it is so on a GPU, for models of ours, which wait for nothing.
    steps: of the run, as far as its options say.
    pulls: whether a step waits for sums of other ranks (push-pull).
    """
    if capture != "auto":
        return capture == "always", f"capture {capture}"
    if not on_gpu or not sampled:
        return False, "it is for sampled batches on a GPU"
    if pulls:
        return False, "a step waits for sums of other ranks, which cannot be recorded"
    if not isinstance(model, (GNN, TGN)):
        return False, "a model of one's own may wait for the GPU, which cannot be recorded: capture always tries it"
    if normalizes_batches(model):
        return False, "batches would be padded, and the model normalizes over them"
    if steps < _STEPS:
        return False, f"the run has {steps} steps, and fewer than {_STEPS} do not earn a recording"
    return True, f"{steps} steps of a model that waits for nothing"


def normalizes_batches(model: nn.Module) -> bool:
    """Whether a node's row depends on other nodes of its batch, and so on rows that pad it."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


class CapturedStep:
    """Replays a step where it can. `loss` must compute on the batch alone and wait for nothing; `kind` is the class of rooms."""

    def __init__(self, model: nn.Module, loss: Loss, kind: Callable[..., Room]) -> None:
        self.model, self.loss, self.kind = model, loss, kind
        self.seen = 0
        self.recordings = self.replays = 0
        self._shape: Room | None = None  # room for all batches so far
        self._room: Room | None = None  # what is recorded, or to be recorded again
        self._recorded: _RecordedStep | None = None

    @property
    def room(self) -> Room | None:
        """What a batch is most likely copied into."""
        return self._room

    def __call__(self, batch: Padding) -> tuple[Tensor, ...] | None:
        """What the loss returns, with the gradients in place; or None, for a batch to be computed as usual."""
        self.seen += 1
        shape: Room = batch.room(spare=_SPARE)
        if self._shape is None or self._shape.alike(shape):
            self._shape = shape if self._shape is None else self._shape.union(shape)
        if self.seen <= _LOOK or not self._shape.alike(shape):
            return None
        if self._room is None or not self._room.holds(batch.room()):
            if self.recordings == _RECORDINGS:
                return None
            self._recorded = None  # its memory serves the next
            self._room = self._shape
            self.recordings += 1
        if self._recorded is None:
            self._recorded = _RecordedStep(self.model, self.loss, self._room, batch)
        self.replays += 1
        return self._recorded.replay(batch)

    def state_dict(self) -> dict[str, Any]:
        """Which batches are replayed, and in how much room."""
        shapes = [None if shape is None else astuple(shape) for shape in (self._shape, self._room)]  # type: ignore[call-overload]
        return {"seen": self.seen, "recordings": self.recordings, "shapes": shapes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.seen, self.recordings, self._recorded = state["seen"], state["recordings"], None
        self._shape, self._room = (None if shape is None else self.kind(*map(tuple, shape)) for shape in state["shapes"])


class _RecordedStep:
    """Forward and backward of a padded twin, which batches are copied into."""

    def __init__(self, model: nn.Module, loss: Loss, room: Room, batch: Padding) -> None:
        self.twin = batch.padded(room, model)
        self.twin.rehearse(batch)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.recorded = Recorded(lambda: self._differentiated(loss), self.parameters[0].device)

    def _differentiated(self, loss: Loss) -> tuple[tuple[Tensor, ...], list[Tensor | None]]:
        """What the loss returns, and the gradients, which no parameter keeps."""
        made, *beside = loss(self.twin)
        made.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        return (made.detach(), *beside), gradients

    def replay(self, batch: Padding) -> tuple[Tensor, ...]:
        self.twin.fill(batch)
        outcome, gradients = self.recorded.replay()
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        return outcome
