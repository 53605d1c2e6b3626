"""Initial values as PyG draws them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def glorot(values: Tensor) -> None:
    """Uniform within sqrt(6 / (rows + columns)) (Glorot and Bengio, 2010)."""
    bound = math.sqrt(6 / (values.shape[-2] + values.shape[-1]))
    with torch.no_grad():
        values.uniform_(-bound, bound)


def uniform(values: Tensor | None, inputs: int) -> None:
    """Draw a bias uniformly within 1 / sqrt(inputs), as torch does for a linear map; None is passed over."""
    if values is not None:
        bound = 1 / math.sqrt(inputs)
        with torch.no_grad():
            values.uniform_(-bound, bound)


def zeros(values: Tensor | None) -> None:
    """Fill a parameter with zeros; None is passed over."""
    if values is not None:
        with torch.no_grad():
            values.zero_()
