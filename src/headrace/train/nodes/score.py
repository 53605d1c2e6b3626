"""How good predictions are: accuracy, F1 and the area under the ROC curve; micro-averaged F1 where a node has several labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.nn.node_losses import count_right, node_loss
from headrace.train.measure import Measure, auc

_MOST_CLASSES = 1000  # that a table of classes has


def measures_of(labels: Tensor, classes: int) -> tuple[Measure, ...]:
    """What predictions of these labels are measured by; the first decides which weights are best, then the loss.

    The area under the ROC curve is that of one of two classes, or the mean over labels.
    """
    several = labels.dim() == 2
    first = Measure("micro_f1" if several else "accuracy", format=".2%")
    measures = (first, Measure("loss", better="lower"), Measure("macro_f1", format=".2%"))
    return (*measures, Measure("auc")) if several or classes == 2 else measures


def score(rows: Tensor, labels: Tensor) -> dict[str, float]:
    """The measures of predictions, without those that these labels leave undefined.  # [n, classes], [n] or [n, classes]

    FloatingPointError where predictions are not finite: a class of NaN is no class.
    """
    if not bool(torch.isfinite(rows).all()):
        raise FloatingPointError("the model's outputs are not finite: look for huge features, or lower lr")
    with torch.no_grad():
        several = labels.dim() == 2
        right = float(count_right(rows, labels)) / max(len(rows), 1)
        values = {"micro_f1" if several else "accuracy": right, "loss": float(node_loss(rows, labels))}
        f1, known = _f1(*_counts(rows, labels))
        if bool(known.any()):
            values["macro_f1"] = float(f1[known].mean())
        columns = range(rows.shape[1]) if several else [1] if rows.shape[1] == 2 else []
        areas = [auc(_margin(rows, c, several), labels[:, c] > 0 if several else labels == c) for c in columns]
        if defined := [area for area in areas if area is not None]:
            values["auc"] = sum(defined) / len(defined)
        return values


def per_class(rows: Tensor, labels: Tensor) -> list[dict[str, Any]] | None:
    """How many nodes have each class, and its precision, recall and F1; None of more classes than a table is read for."""
    if rows.shape[1] > _MOST_CLASSES:
        return None
    both, predicted, true = _counts(rows, labels)
    f1, _ = _f1(both, predicted, true)
    shares = {"precision": both / predicted.clamp_min(1), "recall": both / true.clamp_min(1), "f1": f1}
    columns = {name: values.tolist() for name, values in shares.items()}
    return [{"nodes": int(count)} | {n: column[c] for n, column in columns.items()} for c, count in enumerate(true.tolist())]


def _margin(rows: Tensor, column: int, several: bool) -> Tensor:
    return rows[:, column] if several else rows[:, column] - rows[:, 1 - column]


def _counts(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each class: correct predictions, predictions, nodes that have it.  # -> 3 x [classes] float64"""
    if labels.dim() == 2:
        predicted, true = rows > 0, labels.bool()
        return tuple(marked.sum(dim=0).double() for marked in (predicted & true, predicted, true))  # type: ignore[return-value]
    best, labels = rows.argmax(dim=1), labels.long()
    kinds = (labels[best == labels], best, labels)
    return tuple(torch.bincount(kind, minlength=rows.shape[1]).double() for kind in kinds)  # type: ignore[return-value]


def _f1(both: Tensor, predicted: Tensor, true: Tensor) -> tuple[Tensor, Tensor]:
    """F1 of each class, and whether it occurs, among the labels or the predictions."""
    total = predicted + true
    return 2 * both / total.clamp_min(1), total > 0


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """Weights by which every class counts the same; of several labels, by which their ones and zeros do."""
    if labels.dim() == 2:
        ones = labels.float().sum(dim=0).clamp_min(1)
        return (len(labels) - ones).clamp_min(1) / ones
    count = torch.bincount(labels.long(), minlength=classes).float()
    return torch.where(count > 0, len(labels) / (classes * count.clamp_min(1)), 0.0)
