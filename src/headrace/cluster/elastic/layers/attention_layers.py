"""`AttentionLayers`: layers whose edges are weighed by scores (GAT, GATv2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.cluster.elastic.attention_vertex import AttentionVertex, by_node
from headrace.cluster.elastic.draws import LayerDraws
from headrace.cluster.elastic.layers.edges import LayerEdges, Places
from headrace.cluster.elastic.layers.kind import Layers, Weights
from headrace.cluster.elastic.neighborhood import Neighborhood, Reading
from headrace.cluster.elastic.task import Direction, Stages, Task, stages
from headrace.cluster.elastic.vertex import GRADIENT, WEIGHT, result_gradient, vertex_of
from headrace.nn import Layer


class AttentionLayers(Layers):
    """A task is the end of a layer and the projection of the next; this server computes what is between them (`LayerEdges`).

    Projected rows are sent to those who read them. Back along edges go, of each row that attends, its gradient, three facts of its
    softmax and what it is as a reader: so the gradient of a projected row is a gather along reversed edges, and nothing is added
    by arrival. In an epoch a server sends

        s (B sum of (W_l + P_l) + B' sum of (W_l + 3 A_l + T_l)) bytes of rows, over the layers l = 0 to L - 1:

    s is the size of an element; B counts its rows that others read, once for each of them, and B' the same along reversed edges.
    A_l are heads, and W_l is the width of all heads together. P_l, the scores of a source, is A_l for GAT and 0 for GATv2. T_l,
    what a reader is, is A_l for GAT and W_l for GATv2. Features are never sent.
    """

    def __init__(self, layers: list[Layer], neighborhood: Neighborhood, x: Tensor, dtype: torch.dtype) -> None:
        self._layers, self._at, self._x, self._dtype = layers, neighborhood, x, dtype
        self.last = len(layers)
        cuts = [by_node(layer) for layer in layers]
        places = Places(neighborhood, self_loops=cuts[0].self_loops, dropout=any(cut.dropout for cut in cuts))
        self._edges = [LayerEdges(cut, places, dtype) for cut in cuts]
        own = neighborhood.num_own
        around = {number: layer.out_channels for number, layer in enumerate(layers) if layer.skip is not None}
        self._skipped = {number: torch.zeros(own, width, dtype=dtype) for number, width in around.items()}
        self._to_skipped = {number: torch.zeros_like(rows) for number, rows in self._skipped.items()}
        self._names = [self._model_names(number) for number in range(len(layers) + 1)]

    def _model_names(self, number: int) -> dict[str, str]:
        """Of the weights of a task: as the model calls them, by how the task does."""
        vertex = vertex_of(self._layers, number)
        assert isinstance(vertex, AttentionVertex)
        prefixes = {"ended": f"layers.{number - 1}", "projected": f"layers.{number}"}
        parts = (name.split(".", 1) for name in sorted(vertex.learned))
        return {f"{part}.{name}": f"{prefixes[part]}.{name}" for part, name in parts}

    def stages(self, *, validate: bool = False) -> Stages:
        return stages(len(self._layers), attention=True, validate=validate)

    def payload(self, task: Task, weights: Weights, draws: Sequence[LayerDraws] | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
        number, (begin, end) = task.layer, self._at.range_of(task.interval)
        arrays = {WEIGHT + name: weights[of_model] for name, of_model in self._names[number].items()}
        rate, seed = self._dropout(number, draws)
        if rate:
            arrays["ids"] = self._at.ids[begin:end]
        if number == 0:
            arrays["x"] = self._x[begin:end]
        else:
            edges, ended = self._edges[number - 1], number - 1
            if task.direction != Direction.BACKWARD:
                edges.attend(task.interval, self._edge_weight(ended, weights), None if draws is None else draws[ended].attention)
            arrays["mixed"] = edges.mixed[begin:end]
            if ended in self._skipped:
                arrays["skipped"] = self._skipped[ended][begin:end]
        if task.direction == Direction.BACKWARD and number < self.last:
            assert draws is not None
            edges = self._edges[number]
            sources = edges.gather_back(task.interval, self._edge_weight(number, weights), draws[number].attention)
            arrays |= {result_gradient("sources"): sources, result_gradient("targets"): edges.to_targets[begin:end]}
            if number in self._to_skipped:
                arrays[result_gradient("skipped")] = self._to_skipped[number][begin:end]
        return {"seed": seed, "inputs": number > 0}, arrays

    def constant(self, task: Task) -> tuple[str, ...]:
        return ("x",) if task.layer == 0 else ()

    def columns(self, layer: int, direction: Direction) -> tuple[int, int]:
        ended, projected = layer - 1, layer
        read = self._edges[ended].cut.width + self._around(ended) if layer else 0  # features are constant
        wide = self._layers[-1].out_channels
        if layer < self.last:
            cut = self._edges[projected].cut
            wide = cut.source_width + cut.target_width + self._around(projected)
        if direction in (Direction.FORWARD, Direction.VALIDATE):
            return read, wide
        return read + (wide if direction == Direction.BACKWARD else 0), read

    def _around(self, number: int) -> int:
        return self._skipped[number].shape[1] if number in self._skipped else 0

    @property
    def constant_columns(self) -> int:
        return self._x.shape[1]

    @property
    def working_bytes(self) -> int:
        return max(2 * (edges.sources.nbytes + edges.back.nbytes) for edges in self._edges)

    def _dropout(self, number: int, draws: Sequence[LayerDraws] | None) -> tuple[float, int]:
        """Rate and seed of the dropout in a task: that of the features, or that after the layer which it ends."""
        if draws is None:
            return 0.0, 0
        if number == 0:
            return self._layers[0].before, draws[0].before
        return self._layers[number - 1].after, draws[number - 1].after

    def _edge_weight(self, number: int, weights: Weights) -> Tensor | None:
        name = self._edges[number].cut.edge_weight
        return None if name is None else weights[f"layers.{number}.conv.{name}"]

    def gradients(self, task: Task, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        names = self._names[task.layer]
        found = {names[n.removeprefix(GRADIENT)]: array for n, array in arrays.items() if n.startswith(GRADIENT)}
        if task.layer < self.last and (name := self._edges[task.layer].cut.edge_weight) is not None:
            found[f"layers.{task.layer}.conv.{name}"] = self._edges[task.layer].to_weight[task.interval]
        return found

    def keep(self, task: Task, arrays: Mapping[str, Tensor], weights: Weights, draws: Sequence[LayerDraws] | None) -> None:
        number, (begin, end) = task.layer, self._at.range_of(task.interval)
        if not task.has_gradients:
            if number < self.last:
                self._edges[number].sources[begin:end] = arrays["sources"]
                self._edges[number].targets[begin:end] = arrays["targets"]
                if number in self._skipped:
                    self._skipped[number][begin:end] = arrays["skipped"]
        elif number:
            assert draws is not None
            ended = number - 1
            weight, seed = self._edge_weight(ended, weights), draws[ended].attention
            self._edges[ended].turn_back(task.interval, arrays["mixed"], weight, seed)
            if ended in self._to_skipped:
                self._to_skipped[ended][begin:end] = arrays["skipped"]

    def scattered(self, task: Task) -> tuple[Tensor, Reading] | None:
        if task.has_gradients:
            return (self._edges[task.layer - 1].back, self._at.backward) if task.layer else None
        return (self._edges[task.layer].sources, self._at.forward) if task.layer < self.last else None

    def forget(self) -> None:
        """Tables are written anew in every epoch."""

    @property
    def widths(self) -> tuple[list[int], list[int]]:
        return [edges.sources.shape[1] for edges in self._edges], [edges.back.shape[1] for edges in self._edges]
