"""Losses of scored edges against their negatives, and penalties on rows.

Every loss takes the scores of positives and of each one's negatives, and is a mean over positives. `masked` are negatives that
do not count, known edges above all: their scores become so low that no loss sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.kernels import softmax_rows_

LOW = -1e9  # a score that no loss sees; finite, so that a row of nothing else has gradients (of zero)

Loss = Callable[[Tensor, Tensor], Tensor]


def softmax_loss(positive: Tensor, negative: Tensor) -> Tensor:  # [..., b], [..., b, n] -> []
    """Cross entropy: how unlikely the positive is among itself and its negatives."""
    loss: Tensor = _Softmax.apply(positive, negative)  # type: ignore[no-untyped-call]
    return loss


def logistic_loss(positive: Tensor, negative: Tensor) -> Tensor:  # [..., b], [..., b, n] -> []
    """Binary cross entropy of positives, and of the mean of their negatives: each side counts the same."""
    return F.softplus(-positive).mean() + F.softplus(negative).mean()


def margin_loss(positive: Tensor, negative: Tensor, *, margin: float = 1.0) -> Tensor:  # [..., b], [..., b, n] -> []
    """What each negative lacks of being `margin` below its positive."""
    return (margin + negative - positive.unsqueeze(-1)).relu().mean()


def self_adversarial_loss(
    positive: Tensor, negative: Tensor, *, margin: float = 9.0, temperature: float = 1.0
) -> Tensor:  # [..., b], [..., b, n] -> []
    """Logistic loss of distances from `margin`, negatives weighed by how likely the model finds them (Sun et al., ICLR 2019)."""
    weight = (temperature * negative.detach()).softmax(-1)
    far = (weight * F.softplus(negative + margin)).sum(-1)
    return (F.softplus(-positive - margin) + far).mean() / 2


def one_vs_all_loss(scores: Tensor, target: Tensor) -> Tensor:  # [b, N], [b] -> []
    """Cross entropy over all nodes (Lacroix et al., ICML 2018)."""
    return F.cross_entropy(scores, target)


class _Softmax(torch.autograd.Function):
    """Keeps the gradients, which are likelihoods: each exponential is taken once."""

    @staticmethod
    def forward(ctx: Any, positive: Tensor, negative: Tensor) -> Tensor:
        likely = negative.clone(memory_format=torch.contiguous_format)
        loss, pull = softmax_rows_(likely.flatten(0, -2), positive.flatten(), share=1 / max(positive.numel(), 1))
        ctx.save_for_backward(pull.view(positive.shape), likely)
        return loss.mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        pull, likely = ctx.saved_tensors
        return pull * grad, likely * grad


LOSSES: dict[str, Callable[..., Tensor]] = {
    "softmax": softmax_loss,
    "logistic": logistic_loss,
    "margin": margin_loss,
    "self_adversarial": self_adversarial_loss,
}


def loss_named(name: str, *, margin: float | None = None, temperature: float = 1.0) -> Loss:
    """The loss called `name`; `margin` and `temperature` are for those that have them."""
    if name not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, not {name!r}")
    if name == "margin":
        return partial(margin_loss, margin=1.0 if margin is None else margin)
    if name == "self_adversarial":
        return partial(self_adversarial_loss, margin=9.0 if margin is None else margin, temperature=temperature)
    return LOSSES[name]


@dataclass(frozen=True)
class Penalty:
    """weight * the mean over edges of sum |x|^power, over the moduli of an edge's head, relation and tail.

    `power` 3 is the nuclear 3-norm of Lacroix et al. (ICML 2018), for complex rows that of their moduli; it counts the rows of each
    edge, so rows of many edges are held back more often.
    """

    power: float
    weight: float

    def __post_init__(self) -> None:
        if not self.power >= 1 or not self.weight >= 0:
            raise ValueError(f"power must be at least 1 and weight not negative, got {self.power} and {self.weight}")

    def __call__(self, moduli: Sequence[Tensor]) -> Tensor:  # of [b, w] each -> []
        total = sum((m.pow(self.power).sum() / max(len(m), 1) for m in moduli), torch.zeros((), device=moduli[0].device))
        return self.weight * total
