"""The loss of predictions of nodes, and how many are right."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def node_loss(rows: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Cross entropy of classes, or of each label where there are several, in fp32 or fp64.  # [n, classes], [n] or [n, classes]"""
    rows = rows if rows.dtype == torch.float64 else rows.float()
    weight = None if weight is None else weight.to(rows.dtype)
    if labels.dim() == 2:
        return F.binary_cross_entropy_with_logits(rows, labels.to(rows.dtype), pos_weight=weight)
    return F.cross_entropy(rows, labels.long(), weight=weight)


def loss_weight(labels: Tensor, weight: Tensor) -> Tensor | None:
    """What `node_loss` is a mean over, where that is not the number of nodes: the sum of their classes' weights.  # [n] -> []"""
    return None if labels.dim() == 2 else weight[labels.long()].sum()


def count_right(rows: Tensor, labels: Tensor) -> Tensor:
    """Correct predictions; of several labels, the F1 of all of them times the number of nodes. Left on the device.  # -> []"""
    if labels.dim() == 2:
        predicted, true = rows > 0, labels.bool()
        both, total = (predicted & true).sum().double(), (predicted.sum() + true.sum()).double()
        return torch.where(total > 0, 2 * both / total.clamp_min(1), 1.0) * len(rows)
    return (rows.argmax(dim=1) == labels).sum()
