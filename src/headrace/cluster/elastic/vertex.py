"""The tensor work of a layer for some of its rows, once their neighbors are summed: what a worker is given as bytes.

A layer is `conv.split()` without its sum: linear maps, bias, norm, activation, dropout; of attention without the pass over edges
(`AttentionVertex`). Dropout is a function of the task's seed
and of the nodes' ids, so any worker gives the same bits. The backward pass is the vector-Jacobian product of the same function.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from headrace.cluster.elastic.attention_vertex import AttentionVertex
from headrace.cluster.elastic.workers.operations import operation
from headrace.nn import GNN, Layer
from headrace.nn.node_losses import count_right, loss_weight, node_loss
from headrace.sample import Block

WEIGHT, GRADIENT = "weight.", "gradient."  # how arrays of weights and of their gradients are called
INPUTS = ("summed", "own", "x", "mixed", "skipped")  # arrays of rows that a task reads


class Vertex(nn.Module):
    """A layer applied to rows that are summed already.

    >>> import headrace as hr
    >>> layer, graph, x = hr.nn.Layer(hr.nn.SAGEConv(6, 4), 6, 4), hr.Graph.from_edges([0, 1, 2], [1, 2, 0]), torch.randn(3, 6)
    >>> summed = layer.conv.fixed_sum().make(x, graph)
    >>> bool(torch.allclose(Vertex(layer)(summed, x), layer(x, graph), atol=1e-6))
    True
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer, self.split = layer, layer.split()

    prefix = "layer."  # of its weights' names here; tasks leave it out

    @property
    def learned(self) -> dict[str, Tensor]:
        """Parameters that it uses."""
        return dict(self.layer.named_parameters())

    @property
    def fixed(self) -> dict[str, Tensor]:
        """Buffers that it uses."""
        return dict(self.layer.named_buffers())

    @property
    def reads(self) -> tuple[str, ...]:
        """Arrays of rows that it needs."""
        return ("summed", "own") if self.split.reads_own else ("summed",)

    def forward(self, summed: Tensor, own: Tensor | None = None, ids: Tensor | None = None, seed: int | None = None) -> Tensor:
        """New rows. `own`: of the same nodes, where the layer reads them."""
        layer, conv = self.layer, self.split.conv
        weights: list[Any] = [reduce(getattr, name.split("."), layer) for name in self.split.names]
        where = Block(torch.zeros(len(summed) + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), len(summed))
        rows = conv.mapped(summed if own is None else own, where, weights[: len(conv.weights)], summed=summed)
        return layer.finish(conv.finish(rows, where), None if layer.skip is None else layer.skip(own), ids=ids, seed=seed)


_local = threading.local()  # weights are swapped in while a layer is called, so every thread has layers of its own


def vertex_of(layers: Sequence[Layer], number: int) -> Vertex | AttentionVertex:
    """The tensor work of the tasks of layer `number`. Of attention there is one more than there are layers (`stages`)."""
    if layers[0].split().conv.by_node is None:
        return Vertex(layers[number])
    return AttentionVertex(layers[number - 1] if number else None, layers[number] if number < len(layers) else None)


def _vertex(config: str, layer: int, training: bool) -> Vertex | AttentionVertex:
    """The layer of a model, without weights."""
    if not hasattr(_local, "vertex"):

        @lru_cache(maxsize=64)
        def made(config: str, layer: int, training: bool) -> Vertex | AttentionVertex:
            with torch.device("meta"):
                return vertex_of(cast("list[Layer]", list(GNN(**json.loads(config)).layers)), layer).train(training)

        _local.vertex = made
    vertex: Vertex | AttentionVertex = _local.vertex(config, layer, training)
    return vertex


class _Call:
    """One task: its layer, its weights, its rows."""

    def __init__(self, options: Mapping[str, Any], arrays: Mapping[str, Tensor], *, gradients: bool) -> None:
        self.vertex = _vertex(options["model"], options["layer"], options["training"])
        self.weights = {n.removeprefix(WEIGHT): a.detach() for n, a in arrays.items() if n.startswith(WEIGHT)}
        self.inputs = {name: arrays[name].detach() for name in INPUTS if name in arrays}
        _check_arrays(self.vertex, self.weights, self.inputs)
        self.ids, self.seed = arrays.get("ids"), options["seed"]
        self.wanted: dict[str, Tensor] = {}
        if gradients:
            learned = self.vertex.learned
            self.weights = {n: w.requires_grad_() if n in learned else w for n, w in self.weights.items()}
            self.wanted = {GRADIENT + name: weight for name, weight in self.weights.items() if name in learned}
            if options["inputs"]:
                self.inputs = {name: rows.requires_grad_() for name, rows in self.inputs.items()}
                self.wanted |= self.inputs

    def rows(self) -> dict[str, Tensor]:
        """Its results, by name."""
        swapped = {self.vertex.prefix + name: weight for name, weight in self.weights.items()}
        rows = functional_call(self.vertex, swapped, kwargs={**self.inputs, "ids": self.ids, "seed": self.seed})
        return rows if isinstance(rows, dict) else {"rows": rows}

    def gradients(self, of: Sequence[Tensor], by: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """Of the weights, and of the inputs where those are wanted."""
        found = torch.autograd.grad(of, list(self.wanted.values()), by, allow_unused=True)
        pairs = zip(self.wanted.items(), found, strict=True)
        return {name: torch.zeros_like(tensor) if gradient is None else gradient for (name, tensor), gradient in pairs}


def _check_arrays(vertex: Vertex | AttentionVertex, weights: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> None:
    """Refuse arrays that are missing or have another shape. The layer's own weights are empty: torch would compute with them."""
    needed = vertex.learned | vertex.fixed
    lacking = [WEIGHT + name for name in needed if name not in weights]
    lacking += [name for name in vertex.reads if name not in inputs]
    if lacking:
        raise ValueError(f"a task of {type(vertex.layer.conv).__name__} lacks the arrays {', '.join(lacking)}")
    for name, weight in needed.items():
        if weights[name].shape != weight.shape:
            raise ValueError(f"{WEIGHT + name} has the shape {list(weights[name].shape)}, and the layer's {list(weight.shape)}")
    if len({rows.shape[:-1] for rows in inputs.values()}) != 1 or any(rows.dim() != 2 for rows in inputs.values()):
        shapes = ", ".join(f"{name} {list(rows.shape)}" for name, rows in inputs.items())
        raise ValueError(f"inputs of a task must have as many rows as each other, not {shapes}")


def result_gradient(name: str) -> str:
    """How the gradient of a result is called among the arrays of a backward task."""
    return "gradient" if name == "rows" else f"gradient_{name}"


@operation("forward")
def forward(options: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows of a layer."""
    with torch.no_grad():
        return _Call(options, arrays, gradients=False).rows()


@operation("turn")
def turn(options: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows of the last layer, their loss, and its gradients, both summed over the seeds. `weight`: what the loss sums over."""
    call = _Call(options, arrays, gradients=True)
    with torch.enable_grad():
        loss, numbers = _loss(call.rows()["rows"], arrays)
        gradients = call.gradients([loss], [None])
    return {**numbers, **gradients}


def turned(rows: Tensor, labels: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """What `turn` says of the loss of these rows, and its gradient: for a server whose tasks are not fused.  # -> [n, classes]"""
    rows = rows.detach().requires_grad_()
    with torch.enable_grad():
        loss, numbers = _loss(rows, labels)
    return numbers, torch.autograd.grad(loss, rows)[0]


def _loss(rows: Tensor, arrays: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    predicted, labels, of_classes = rows[arrays["seeds"]], arrays["labels"], arrays.get("classes")
    counted = None if of_classes is None else loss_weight(labels, of_classes)
    weight = torch.tensor(float(len(labels)), dtype=torch.float64) if counted is None else counted.double()
    loss = node_loss(predicted, labels, of_classes) * weight.to(predicted.dtype) if len(labels) else predicted.sum()
    numbers = {"loss": loss.detach().double(), "weight": weight, "right": count_right(predicted.detach(), labels).double()}
    return loss, {name: number.reshape(1) for name, number in numbers.items()}


@operation("backward")
def backward(options: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of a layer's weights and inputs, from those of its results (`result_gradient`). The layer is computed again."""
    call = _Call(options, arrays, gradients=True)
    with torch.enable_grad():
        results = {name: rows for name, rows in call.rows().items() if rows.requires_grad}
        return call.gradients(list(results.values()), [arrays[result_gradient(name)] for name in results])


def weight_arrays(layer: nn.Module, weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The arrays of a layer's weights and buffers, for a task; `weights` has those of the model."""
    of_layer = {name: weights[prefix + name] for name, _ in layer.named_parameters()} | dict(layer.named_buffers())
    return {WEIGHT + name: array for name, array in of_layer.items()}
