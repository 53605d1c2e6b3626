"""Running statistics of batch norms, updated by the batches of a step in their order, whichever rank made them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RunningStatistics:
    """The batch norms of a model. `before` and `after` a batch tell what it adds; `fold` adds that of all batches of a step."""

    def __init__(self, model: nn.Module) -> None:
        norms = (m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
        self._norms = [norm for norm in norms if norm.track_running_stats and norm.running_mean is not None]
        self.width = sum(2 * norm.num_features for norm in self._norms)
        self._kept: list[tuple[Tensor, Tensor, int]] = []

    def begin(self) -> None:
        """Remember the statistics before the batches of a step."""
        self._kept = []
        for norm in self._norms:
            mean, var = _parts(norm)
            self._kept.append((mean.clone(), var.clone(), int(norm.num_batches_tracked or 0)))

    def before(self) -> None:
        """Let the next batch update zeros, so that it is known what it adds."""
        for norm in self._norms:
            for part in _parts(norm):
                part.zero_()
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.zero_()

    def after(self) -> Tensor:
        """What the batch added.  # -> [width] float64, on the CPU"""
        parts = [part for norm in self._norms for part in _parts(norm)]
        return torch.cat([part.double().cpu() for part in parts]) if parts else torch.empty(0, dtype=torch.float64)

    def fold(self, added: Tensor) -> None:
        """The statistics after batches that added these, one after the other.  # [batches, width]"""
        for row in added:
            self._fold(row)
        for norm, (mean, var, count) in zip(self._norms, self._kept, strict=True):
            for part, value in zip(_parts(norm), (mean, var), strict=True):
                part.copy_(value)
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.fill_(count)

    def _fold(self, row: Tensor) -> None:
        at, folded = 0, []
        for norm, (*parts, count) in zip(self._norms, self._kept, strict=True):
            share = norm.momentum if norm.momentum is not None else 1 / (count + 1)
            for number, part in enumerate(parts):
                new = row[at : at + norm.num_features].to(part)
                parts[number] = part * (1 - share) + (new if norm.momentum is not None else new * share)
                at += norm.num_features
            folded.append((parts[0], parts[1], count + 1))
        self._kept = folded


def _parts(norm: nn.modules.batchnorm._BatchNorm) -> tuple[Tensor, Tensor]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var
