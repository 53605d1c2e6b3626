"""What a forecast must beat: zero, the last value, and one linear model shared by all nodes, on the same windows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.train.snapshots.windows import Windows


def errors(forecast: Tensor, values: Tensor, counts: Tensor, deviation: float) -> dict[str, float]:
    """Mean squared error, its root, and mean absolute error, in the unit of the targets.  # [groups, nodes, horizon] each"""
    total = max(float(counts.sum()), 1.0)
    off = (forecast - values).double() * counts * deviation
    mse = float(off.square().sum()) / total
    return {"mse": mse, "rmse": mse**0.5, "mae": float(off.abs().sum()) / total}


def baselines(windows: Windows, split: str = "test") -> dict[str, dict[str, float]]:
    """The errors of forecasts that need no graph."""
    groups = windows.groups[split]
    if not groups:
        return {}
    history, (values, counts) = windows.history(groups), windows.targets(groups)
    zero = torch.full_like(values, -windows.mean / windows.deviation)
    last = history[:, :, -1:].expand_as(values)
    made = {"zero": zero, "last value": last, "linear": linear(windows, history)}
    return {name: errors(forecast, values, counts, windows.deviation) for name, forecast in made.items()}


def linear(windows: Windows, history: Tensor) -> Tensor:  # [groups, nodes, window] -> [groups, nodes, horizon]
    """Least squares over all nodes and training windows."""
    weights = linear_weights(windows).to(history.device)
    return (nn.functional.pad(history, (0, 1), value=1.0).double() @ weights).float()


def linear_weights(windows: Windows) -> Tensor:  # -> [window + 1, horizon]
    """Of the last values in order, and of one; in host memory."""
    groups = windows.groups["train"]
    window = groups[0].window
    like = windows.y.new_zeros(0, dtype=torch.float64)
    gram, moment = like.new_zeros(window + 1, window + 1), like.new_zeros(window + 1, windows.horizon)
    for begin in range(0, len(groups), 256):
        part = groups[begin : begin + 256]
        values, counts = windows.targets(part)
        read = nn.functional.pad(windows.history(part), (0, 1), value=1.0).flatten(0, 1).double()
        weight = counts.flatten(0, 1)[:, :1].double()
        gram += read.t() @ (read * weight)
        moment += read.t() @ (values.flatten(0, 1).double() * weight)
    weights: Tensor = torch.linalg.lstsq(gram.cpu(), moment.cpu(), driver="gelsd").solution
    return weights
