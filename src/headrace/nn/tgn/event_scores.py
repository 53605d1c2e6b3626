"""Scores of future events from the rows of their ends, and the losses of those scores."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

EventLoss = Literal["softmax", "bce"]


class EventScores(nn.Module):
    """w . relu(W_s z_src + W_d z_dst): the decoder of TGL and DistTGL, with their names of parameters.

    With `classes` above 1 a pair has a logit for each class that its event might have.
    """

    def __init__(self, channels: int, classes: int = 1) -> None:
        super().__init__()
        if classes < 1:
            raise ValueError(f"classes must be at least 1, not {classes}")
        self.src_fc = nn.Linear(channels, channels)
        self.dst_fc = nn.Linear(channels, channels)
        self.out_fc = nn.Linear(channels, classes)

    def forward(self, z_src: Tensor, z_dst: Tensor) -> Tensor:
        """A logit per pair, or one per class; several destinations of one source stand in a row.

        # [n, d], [n, (k,) d] -> [n, (k), (classes)]
        """
        if z_src.dim() != 2 or z_dst.shape[-1] != z_src.shape[1] or z_dst.dim() not in (2, 3) or len(z_dst) != len(z_src):
            raise ValueError(
                f"z_src must be [n, d] and z_dst [n, d] or [n, k, d], not of shape {tuple(z_src.shape)} and {tuple(z_dst.shape)}"
            )
        source = self.src_fc(z_src)
        if z_dst.dim() == 3:
            source = source.unsqueeze(1)
        logits: Tensor = self.out_fc((source + self.dst_fc(z_dst)).relu_())
        return logits if self.out_fc.out_features > 1 else logits.squeeze(-1)


def event_losses(logits: Tensor, kind: EventLoss = "softmax") -> Tensor:
    """The loss of each event from its own logit, which comes first, and those of its negatives.  # [n, 1 + k] -> [n]

    "softmax": the cross-entropy of the event among its negatives (DistTGL). "bce": the binary cross-entropies of the event and, as
    a mean, of its negatives, added (TGN, TGL). A batch's loss is the mean of these.

    >>> import torch
    >>> from headrace.nn import event_losses
    >>> event_losses(torch.zeros(2, 4), "softmax").exp().tolist()
    [4.0, 4.0]
    """
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise ValueError(f"logits must be [events, 1 + negatives] with a negative at least, not of shape {tuple(logits.shape)}")
    if kind == "softmax":
        return logits.logsumexp(1) - logits[:, 0]
    if kind == "bce":
        return F.softplus(-logits[:, 0]) + F.softplus(logits[:, 1:]).mean(1)
    raise ValueError(f'the kind of loss must be "softmax" or "bce", not {kind!r}')
