"""How good predictions are: accuracy, or micro-averaged F1 where a node has several labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def node_loss(rows: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Cross entropy of classes, or of each label where there are several.  # [n, classes], [n] or [n, classes]"""
    rows = rows.float()
    if labels.dim() == 2:
        return F.binary_cross_entropy_with_logits(rows, labels.float(), pos_weight=weight)
    return F.cross_entropy(rows, labels.long(), weight=weight)


def count_right(rows: Tensor, labels: Tensor) -> Tensor:
    """Correct predictions; of several labels, the F1 of all of them times the number of nodes. Left on the device.  # -> []"""
    if labels.dim() == 2:
        predicted, true = rows > 0, labels.bool()
        both, total = (predicted & true).sum().double(), (predicted.sum() + true.sum()).double()
        return torch.where(total > 0, 2 * both / total.clamp_min(1), 1.0) * len(rows)
    return (rows.argmax(dim=1) == labels).sum()


def score(rows: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy and loss of predictions, in one piece. FloatingPointError where there are none: a class of NaN is no class."""
    if not bool(torch.isfinite(rows).all()):
        raise FloatingPointError("the model's outputs are not finite: look for huge features, or lower lr")
    with torch.no_grad():
        return {"accuracy": float(count_right(rows, labels)) / max(len(rows), 1), "loss": float(node_loss(rows, labels))}


def loss_weight(labels: Tensor, weight: Tensor) -> Tensor | None:
    """What `node_loss` is a mean over, where that is not the number of nodes: the sum of their classes' weights.  # [n] -> []"""
    return None if labels.dim() == 2 else weight[labels.long()].sum()


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """Weights by which every class counts the same; of several labels, by which their ones and zeros do."""
    if labels.dim() == 2:
        ones = labels.float().sum(dim=0).clamp_min(1)
        return (len(labels) - ones).clamp_min(1) / ones
    count = torch.bincount(labels.long(), minlength=classes).float()
    return torch.where(count > 0, len(labels) / (classes * count.clamp_min(1)), 0.0)
