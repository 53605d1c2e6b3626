"""The tensor work of a layer for some of its rows, once their neighbors are summed: what a worker is given as bytes.

A layer is `conv.split()` without its sum: linear maps, bias, norm, activation, dropout. Dropout is a function of the task's seed
and of the nodes' ids, so any worker gives the same bits. The backward pass is the vector-Jacobian product of the same function.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from headrace.cluster.elastic.operations import operation
from headrace.nn import GNN, Layer
from headrace.nn.node_losses import count_right, loss_weight, node_loss
from headrace.sample import Block

WEIGHT, GRADIENT = "weight.", "gradient."  # how arrays of weights and of their gradients are called


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

    def forward(self, summed: Tensor, own: Tensor | None, ids: Tensor | None = None, seed: int | None = None) -> Tensor:
        """New rows. `own`: of the same nodes, where the layer reads them."""
        layer, conv = self.layer, self.split.conv
        weights: list[Any] = [reduce(getattr, name.split("."), layer) for name in self.split.names]
        where = Block(torch.zeros(len(summed) + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), len(summed))
        rows = conv.mapped(summed if own is None else own, where, weights[: len(conv.weights)], summed=summed)
        return layer.finish(conv.finish(rows, where), None if layer.skip is None else layer.skip(own), ids=ids, seed=seed)


_local = threading.local()  # weights are swapped in while a layer is called, so every thread has layers of its own


def _vertex(config: str, layer: int, training: bool) -> Vertex:
    """The layer of a model, without weights."""
    if not hasattr(_local, "vertex"):

        @lru_cache(maxsize=64)
        def made(config: str, layer: int, training: bool) -> Vertex:
            with torch.device("meta"):
                return Vertex(GNN(**json.loads(config)).layers[layer]).train(training)  # type: ignore[arg-type]

        _local.vertex = made
    vertex: Vertex = _local.vertex(config, layer, training)
    return vertex


class _Call:
    """One task: its layer, its weights, its rows."""

    def __init__(self, options: Mapping[str, Any], arrays: Mapping[str, Tensor], *, gradients: bool) -> None:
        self.vertex = _vertex(options["model"], options["layer"], options["training"])
        self.weights = {n.removeprefix(WEIGHT): a.detach() for n, a in arrays.items() if n.startswith(WEIGHT)}
        self.inputs = {name: arrays[name].detach() for name in ("summed", "own") if name in arrays}
        _check_arrays(self.vertex, self.weights, self.inputs)
        self.ids, self.seed = arrays.get("ids"), options["seed"]
        self.wanted: dict[str, Tensor] = {}
        if gradients:
            learned = {name for name, _ in self.vertex.layer.named_parameters()}
            self.weights = {n: w.requires_grad_() if n in learned else w for n, w in self.weights.items()}
            self.wanted = {GRADIENT + name: weight for name, weight in self.weights.items() if name in learned}
            if options["inputs"]:
                self.inputs = {name: rows.requires_grad_() for name, rows in self.inputs.items()}
                self.wanted |= self.inputs

    def rows(self) -> Tensor:
        swapped = {f"layer.{name}": weight for name, weight in self.weights.items()}
        arguments = (self.inputs["summed"], self.inputs.get("own"), self.ids, self.seed)
        result: Tensor = functional_call(self.vertex, swapped, arguments)
        return result

    def gradients(self, of: Tensor, weight: Tensor | None = None) -> dict[str, Tensor]:
        """Of the weights, and of the inputs where those are wanted."""
        found = torch.autograd.grad(of, list(self.wanted.values()), weight, allow_unused=True)
        pairs = zip(self.wanted.items(), found, strict=True)
        return {name: torch.zeros_like(tensor) if gradient is None else gradient for (name, tensor), gradient in pairs}


def _check_arrays(vertex: Vertex, weights: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> None:
    """Refuse arrays that are missing or have another shape. The layer has no weights of its own, yet torch computes with those."""
    needed = dict(vertex.layer.named_parameters()) | dict(vertex.layer.named_buffers())
    lacking = [WEIGHT + name for name in needed if name not in weights]
    lacking += [name for name in ("summed", *(["own"] if vertex.split.reads_own else [])) if name not in inputs]
    if lacking:
        raise ValueError(f"a task of {type(vertex.layer.conv).__name__} lacks the arrays {', '.join(lacking)}")
    for name, weight in needed.items():
        if weights[name].shape != weight.shape:
            raise ValueError(f"{WEIGHT + name} has the shape {list(weights[name].shape)}, and the layer's {list(weight.shape)}")
    if len({rows.shape[:-1] for rows in inputs.values()}) != 1 or inputs["summed"].dim() != 2:
        shapes = ", ".join(f"{name} {list(rows.shape)}" for name, rows in inputs.items())
        raise ValueError(f"inputs of a task must have as many rows as each other, not {shapes}")


@operation("forward")
def forward(options: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows of a layer."""
    with torch.no_grad():
        return {"rows": _Call(options, arrays, gradients=False).rows()}


@operation("turn")
def turn(options: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows of the last layer, their loss, and its gradients, both summed over the seeds. `weight`: what the loss sums over."""
    call = _Call(options, arrays, gradients=True)
    with torch.enable_grad():
        predicted, labels = call.rows()[arrays["seeds"]], arrays["labels"]
        of_classes = arrays.get("classes")
        counted = None if of_classes is None else loss_weight(labels, of_classes)
        weight = torch.tensor(float(len(labels)), dtype=torch.float64) if counted is None else counted.double()
        if len(labels):
            loss = node_loss(predicted, labels, of_classes) * weight.to(predicted.dtype)
        else:
            loss = predicted.sum()
        gradients = call.gradients(loss)
    numbers = {"loss": loss.detach().double(), "weight": weight, "right": count_right(predicted.detach(), labels).double()}
    return {**{name: number.reshape(1) for name, number in numbers.items()}, **gradients}


@operation("backward")
def backward(options: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of a layer's weights and inputs, from those of its rows (`gradient`): the layer is computed again for them."""
    call = _Call(options, arrays, gradients=True)
    with torch.enable_grad():
        return call.gradients(call.rows(), arrays["gradient"])


def weight_arrays(layer: nn.Module, weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The arrays of a layer's weights and buffers, for a task; `weights` has those of the model."""
    of_layer = {name: weights[prefix + name] for name, _ in layer.named_parameters()} | dict(layer.named_buffers())
    return {WEIGHT + name: array for name, array in of_layer.items()}
