"""Seeds of dropout, as a model would draw them in one pass over the whole graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from headrace.kernels import draw_seed
from headrace.nn import Layer


@dataclass(frozen=True)
class LayerDraws:
    """Of one layer; 0 where it drops nothing."""

    before: int
    attention: int
    after: int


def layer_draws(layers: Iterable[Layer], key: int) -> list[LayerDraws]:
    """The seeds of a training pass whose generator begins with `key`."""
    generator = torch.Generator().manual_seed(key)
    return [LayerDraws(*(draw_seed(generator) if rate else 0 for rate in _rates(layer))) for layer in layers]


def _rates(layer: Layer) -> tuple[float, float, float]:
    cut = layer.split().conv.by_node
    return layer.before, 0.0 if cut is None else cut.dropout, layer.after
