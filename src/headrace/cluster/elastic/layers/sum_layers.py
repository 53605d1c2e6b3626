"""`SumLayers`: layers that begin with a linear sum over neighbors (SAGE, GCN, GIN)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.cluster.elastic.draws import LayerDraws
from headrace.cluster.elastic.layers.kind import Layers, Weights
from headrace.cluster.elastic.layers.sums import LayerSum
from headrace.cluster.elastic.neighborhood import Neighborhood, Reading
from headrace.cluster.elastic.task import Direction, Stages, Task, stages
from headrace.cluster.elastic.vertex import GRADIENT, weight_arrays
from headrace.kernels import dropout
from headrace.nn import Layer


class SumLayers(Layers):
    """A task is all that follows the sum of its layer.

    In an epoch a server sends s (B + B') (H_1 + ... + H_{L-1}) bytes of rows: s is the size of an element, H_l the width of the
    rows that layer l sums (H_0 are features, sent once); B counts its rows that others read, once for each of them, and B' the
    same along reversed edges.
    """

    def __init__(self, layers: list[Layer], neighborhood: Neighborhood, x: Tensor, dtype: torch.dtype) -> None:
        self._layers, self._at, self._dtype = layers, neighborhood, dtype
        self.last = len(layers) - 1
        self.sums = [LayerSum(layer, neighborhood, dtype) for layer in layers]
        self._reads_own = [layer.split().reads_own for layer in layers]
        self._make_tables(x)

    def _make_tables(self, x: Tensor) -> None:
        """Rows of the inputs of every layer but the first, their sums, and the gradients of these; and features of ghosts, once."""
        at, widths = self._at, [total.width for total in self.sums]
        features = torch.cat([x, *at.exchanged(x, at.forward, "features")])
        self.x, self._dropped = features, dict[int, Tensor]()
        self._first = self.sums[0].gather(features, 0, at.num_own)
        if self._layers[0].before:
            self._all_ids = torch.cat([at.ids, *at.exchanged(at.ids, at.forward)])
        else:
            self.x = x  # those of ghosts are summed for good

        def table(rows: int, width: int) -> Tensor:
            return torch.zeros(rows, width, dtype=self._dtype)

        deeper = dict(enumerate(widths[1:], start=1))
        self.rows = {layer: table(at.forward.num_src, width) for layer, width in deeper.items()}
        self._summed = {layer: table(at.num_own, width) for layer, width in deeper.items()}
        self.scaled = {layer: table(at.backward.num_src, width) for layer, width in deeper.items()}
        self._kept = {layer: table(at.num_own, width) for layer, width in deeper.items()}
        if self._layers[0].before:
            self._summed[0] = table(at.num_own, widths[0])

    def stages(self, *, validate: bool = False) -> Stages:
        return stages(len(self._layers), validate=validate)

    def payload(self, task: Task, weights: Weights, draws: Sequence[LayerDraws] | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
        number, (begin, end) = task.layer, self._at.range_of(task.interval)
        layer = self._layers[number]
        arrays = weight_arrays(layer, weights, f"layers.{number}.")
        arrays["summed"], own = self._inputs(task, draws, begin, end)
        if self._reads_own[number]:
            arrays["own"] = own
        if draws is not None and layer.after:
            arrays["ids"] = self._at.ids[begin:end]
        if task.direction == Direction.BACKWARD and number < self.last:
            back = self.sums[number + 1].gather_back(self.scaled[number + 1], begin, end)
            arrays["gradient"] = back.add_(self._kept[number + 1][begin:end])
        return {"seed": 0 if draws is None else draws[number].after, "inputs": number > 0}, arrays

    def constant(self, task: Task) -> tuple[str, ...]:
        return ("summed", "own") if task.layer == 0 and not self._layers[0].before else ()

    def columns(self, layer: int, direction: Direction) -> tuple[int, int]:
        read = self.sums[layer].width * (1 + self._reads_own[layer])
        sent = 0 if layer == 0 and self.constant_columns else read
        wider = self.sums[layer + 1].width if layer < self.last else self._layers[-1].out_channels
        if direction in (Direction.FORWARD, Direction.VALIDATE):
            return sent, wider
        return sent + (wider if direction == Direction.BACKWARD else 0), read if layer else 0

    @property
    def constant_columns(self) -> int:
        return 0 if self._layers[0].before else self.sums[0].width * (1 + self._reads_own[0])

    @property
    def working_bytes(self) -> int:
        return self.x.nbytes if self._layers[0].before else 0

    def _inputs(self, task: Task, draws: Sequence[LayerDraws] | None, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Sums over neighbors, and own rows, that a task reads. What a backward task reads was kept by its forward task."""
        layer = task.layer
        if layer == 0 and (draws is None or not self._layers[0].before):
            return self._first[begin:end], self.x[begin:end]
        rows = self.rows[layer] if layer or draws is None else self._dropped_features(task.epoch, draws[0])
        if task.direction == Direction.BACKWARD:
            return self._summed[layer][begin:end], rows[begin:end]
        summed = self.sums[layer].gather(rows, begin, end)
        if draws is not None:
            self._summed[layer][begin:end] = summed
        return summed, rows[begin:end]

    def _dropped_features(self, epoch: int, draws: LayerDraws) -> Tensor:  # -> [own + ghosts, features]
        if epoch not in self._dropped:
            self._dropped = {known: rows for known, rows in self._dropped.items() if known >= epoch - 2}
            self._dropped[epoch] = dropout(self.x, self._layers[0].before, seed=draws.before, rows=self._all_ids)
        return self._dropped[epoch]

    def gradients(self, task: Task, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        prefix = f"layers.{task.layer}."
        return {prefix + name.removeprefix(GRADIENT): array for name, array in arrays.items() if name.startswith(GRADIENT)}

    def keep(self, task: Task, arrays: Mapping[str, Tensor], weights: Weights, draws: Sequence[LayerDraws] | None) -> None:
        layer, (begin, end) = task.layer, self._at.range_of(task.interval)
        if not task.has_gradients:
            if layer < self.last:
                self.rows[layer + 1][begin:end] = arrays["rows"]
        elif layer:
            gradient, total = arrays["summed"], self.sums[layer]
            self.scaled[layer][begin:end] = total.scaled(gradient, begin, end)
            parts = [part for part in (total.kept(gradient, begin, end), arrays.get("own")) if part is not None]
            self._kept[layer][begin:end] = sum(parts) if parts else 0.0

    def scattered(self, task: Task) -> tuple[Tensor, Reading] | None:
        if task.has_gradients:
            return (self.scaled[task.layer], self._at.backward) if task.layer else None
        return (self.rows[task.layer + 1], self._at.forward) if task.layer < self.last else None

    def forget(self) -> None:
        self._dropped.clear()

    @property
    def widths(self) -> tuple[list[int], list[int]]:
        deeper = [total.width for total in self.sums[1:]]
        return deeper, deeper
