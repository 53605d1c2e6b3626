"""`Counted`: a linear map of what is counted of a pair and of its target; a baseline of links, and where a model begins."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.train.snapshots.heads.activity import COLUMNS as OF_TARGETS
from headrace.train.snapshots.heads.activity import Activity
from headrace.train.snapshots.heads.pairs import COLUMNS as OF_PAIRS
from headrace.train.snapshots.heads.pairs import Pairs

_STEPS = 40  # of L-BFGS: a dozen weights of a convex loss
_DECAY = 1e-4


class Counted(nn.Module):
    """Scores from counts: a weight for each column of `Activity` and of `Pairs`."""

    def __init__(self, weight: Tensor) -> None:  # [columns of targets, then of pairs]
        super().__init__()
        self.weight = nn.Parameter(weight.clone().float())

    def of_targets(self, counts: Tensor) -> Tensor:  # [n, 8] -> [n]
        return counts @ self.weight[: len(OF_TARGETS)]

    def of_pairs(self, counts: Tensor) -> Tensor:  # [m, 5] -> [m]
        return counts @ self.weight[len(OF_TARGETS) :]


def fitted(activity: Activity, pairs: Pairs, steps: Sequence[tuple[int, Tensor, Tensor]]) -> Tensor:
    """The weights of `Counted` with the least cross entropy of true targets among all nodes.  # -> [13]

    steps: the last known snapshot, and the edges (src, dst) of the one that is forecast. The sum over all nodes is that of targets
    alone, and what few pairs of a source differ by: no score of a pair of nodes is made.
    """
    known = [(last, src, dst, *pairs.around(src, last)) for last, src, dst in steps if len(src)]
    weight = torch.zeros(len(OF_TARGETS) + len(OF_PAIRS), dtype=torch.float64, requires_grad=True)
    if not known:
        return weight.detach()

    def loss() -> Tensor:
        total = _DECAY * weight.square().sum()
        for last, src, dst, place, other, counts in known:
            alone = activity.counts[last].double() @ weight[: len(OF_TARGETS)]
            worth = counts.double() @ weight[len(OF_TARGETS) :]
            top = alone.detach().max()
            each = (alone - top).exp()
            more = each[other] * worth.expm1()
            whole = each.sum() + torch.zeros(len(src), dtype=torch.float64).index_add(0, place, more)
            is_true = other == dst[place]
            true = alone[dst].index_add(0, place[is_true], worth[is_true])
            total = total + (F.relu(whole).clamp_min(1e-300).log() + top - true).mean() / len(known)
        return total

    optimizer = torch.optim.LBFGS([weight], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        made = loss()
        made.backward()  # type: ignore[no-untyped-call]
        return float(made.detach())

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[arg-type]
    return weight.detach()
