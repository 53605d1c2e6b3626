"""The softmax of many rows of scores, each with one more of its own, in place: likelihoods are the gradient of the loss."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.kernels._on_gpu import on_gpu


def softmax_rows_(scores: Tensor, own: Tensor, *, share: float) -> tuple[Tensor, Tensor]:  # [r, n], [r] -> [r], [r]
    """How unlikely each row's `own` score is among itself and the row's, -log(softmax), and `share` times the gradient of that
    with respect to it. The gradient with respect to the row's scores, times `share`, takes their place."""
    if scores.is_cuda and scores.dtype == torch.float32:
        results: tuple[Tensor, Tensor] = on_gpu("_softmax.triton_softmax").softmax_rows_(scores, own, share=share)
        return results
    return softmax_rows_reference_(scores, own, share=share)


def softmax_rows_reference_(scores: Tensor, own: Tensor, *, share: float) -> tuple[Tensor, Tensor]:  # [r, n], [r] -> [r], [r]
    """The same in plain torch."""
    highest = own if not scores.shape[1] else torch.maximum(own, scores.amax(1))
    scores.sub_(highest.unsqueeze(1)).exp_()
    mine = (own - highest).exp_()
    total = scores.sum(1).add_(mine)
    scale = share / total
    scores.mul_(scale.unsqueeze(1))
    return total.log() + highest - own, mine.mul_(scale).sub_(share)
