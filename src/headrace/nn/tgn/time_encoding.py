"""The encoding of time differences: cosines of learnt frequencies."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TimeEncoding(nn.Module):
    """cos(weight * dt + bias), with frequencies that begin at 10**-linspace(0, 9) and phases at 0.

    Xu et al., "Inductive representation learning on temporal graphs" (TGAT), ICLR 2020, as TGN's and TGL's codes begin it.

    >>> import torch
    >>> from headrace.nn.tgn.time_encoding import TimeEncoding
    >>> TimeEncoding(3)(torch.tensor([0, 100])).shape
    torch.Size([2, 3])
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width of the time encoding must be at least 1, not {width}")
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.copy_(10 ** -torch.linspace(0, 9, len(self.weight), dtype=torch.float64))
            self.bias.zero_()

    def forward(self, dt: Tensor) -> Tensor:
        """Time differences of any number type, cast here and not before they were taken.  # [n] -> [n, width]"""
        return (self.weight * dt.to(self.weight.dtype)[:, None] + self.bias).cos()

    def extra_repr(self) -> str:
        return str(len(self.weight))
