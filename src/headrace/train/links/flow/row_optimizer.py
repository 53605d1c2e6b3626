"""How rows are updated: pure functions from gradients and gathered state to what is added to both.

Deltas, not new values: batches that are in flight at a time add to a row one after the other and none is lost (Mohoney et al.,
"Marius", OSDI 2021). Row-wise Adagrad keeps one float a row, the mean of the row's squared gradients (PyTorch-BigGraph).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from headrace import _native

RowOptimizerName = Literal["row_adagrad", "adagrad", "sgd"]
NAMES = ("row_adagrad", "adagrad", "sgd")


@dataclass(frozen=True)
class RowOptimizer:
    """How gradients of rows become deltas.

    >>> import torch
    >>> from headrace.train.links.flow.row_optimizer import RowOptimizer
    >>> RowOptimizer("row_adagrad").deltas(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 1), lr=0.1)[1]
    tensor([[12.5000]])
    """

    name: RowOptimizerName = "row_adagrad"
    eps: float = 1e-10

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"optimizer must be one of {', '.join(NAMES)}, not {self.name!r}")

    def state_width(self, dim: int) -> int:
        """Floats of state that a row of `dim` floats needs."""
        return {"row_adagrad": 1, "adagrad": dim, "sgd": 0}[self.name]

    def deltas(self, grad: Tensor, state: Tensor, *, lr: float) -> tuple[Tensor, Tensor]:  # [k, d], [k, s] -> [k, d], [k, s]
        """What to add to rows and to their state. On the CPU, in float32, by one pass over the gradients."""
        if grad.is_cpu and grad.dtype == state.dtype == torch.float32:
            grad, state = grad.detach().contiguous(), state.detach().contiguous()
            delta, added = torch.empty_like(grad), torch.empty_like(state)
            _native.row_updates(self.name, grad, state, delta, added, lr=lr, eps=self.eps, threads=torch.get_num_threads())
            return delta, added
        if self.name == "sgd":
            return -lr * grad, state
        squares = grad.square()
        if self.name == "row_adagrad":
            squares = squares.mean(dim=1, keepdim=True)
        root = (state + squares).sqrt_().add_(self.eps)
        return (-lr * grad).div_(root), squares
