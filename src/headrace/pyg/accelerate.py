"""`accelerate`: PyG's layers of a model become ours, in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch_geometric.nn import MessagePassing

from headrace.pyg.gat import GATConv, GATv2Conv
from headrace.pyg.gcn import GCNConv
from headrace.pyg.gin import GINConv, GINEConv
from headrace.pyg.layer import Fast
from headrace.pyg.rgcn import RGCNConv
from headrace.pyg.sage import GraphConv, SAGEConv
from headrace.pyg.transformer import TransformerConv

LAYERS: tuple[Any, ...] = (SAGEConv, GCNConv, GINConv, GINEConv, GATConv, GATv2Conv, TransformerConv, RGCNConv, GraphConv)
_OURS = {layer.pyg: layer for layer in LAYERS}


@dataclass(frozen=True)
class Layer:
    """One message-passing layer of a model: its name in it, its class, whether it was changed, and why not."""

    name: str
    kind: str
    changed: bool
    reason: str = ""


class Accelerated:
    """What `accelerate` did to a model: `changed` and `kept` list its layers; `restore` undoes it."""

    def __init__(self, model: nn.Module, layers: list[Layer], swapped: list[Any]) -> None:
        self.model, self.layers, self._swapped = model, tuple(layers), swapped

    @property
    def changed(self) -> tuple[Layer, ...]:
        """The layers that are ours now."""
        return tuple(layer for layer in self.layers if layer.changed)

    @property
    def kept(self) -> tuple[Layer, ...]:
        """The layers that are PyG's as before, each with the reason."""
        return tuple(layer for layer in self.layers if not layer.changed)

    def restore(self) -> None:
        """Make the changed layers PyG's own again."""
        for layer in self._swapped:
            layer.__class__ = layer.pyg
        self._swapped.clear()

    def __repr__(self) -> str:
        head = f"Accelerated({len(self.changed)} of {len(self.layers)} message-passing layers)"
        if not self.layers:
            return f"{head}: the model has none"
        names, kinds = max(len(layer.name) for layer in self.layers), max(len(layer.kind) for layer in self.layers)
        lines = (
            f"  {layer.name:{names}}  {layer.kind:{kinds}}  {'changed' if layer.changed else f'kept: {layer.reason}'}"
            for layer in self.layers
        )
        return "\n".join([head, *lines])


def accelerate(model: nn.Module) -> Accelerated:
    """Let PyG's layers in `model` sum over neighbors with Headrace's kernels; all else about them stays PyG's.

    Only the class of a layer changes, so that its weights, hooks, optimizers and checkpoints stay valid. What is returned says
    which layers changed and why others did not. Sizes that are not known yet (`in_channels=-1`) may stay so.

    >>> import torch_geometric.nn as pyg
    >>> from headrace.pyg import accelerate
    >>> accelerate(pyg.GraphSAGE(8, 16, num_layers=2))
    Accelerated(2 of 2 message-passing layers)
      convs.0  SAGEConv  changed
      convs.1  SAGEConv  changed
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"accelerate takes a torch.nn.Module, not {type(model).__name__}")
    layers: list[Layer] = []
    swapped: list[Any] = []
    for name, module in model.named_modules():
        if not isinstance(module, MessagePassing):
            continue
        reason = _reason(module)
        if reason is None:
            module.__class__ = _OURS[type(module)]
            swapped.append(module)
        layers.append(Layer(name or "(model)", type(module).__name__, reason is None, reason or ""))
    return Accelerated(model, layers, swapped)


def _reason(module: Any) -> str | None:
    """Why a layer keeps its class, or None."""
    if isinstance(module, Fast):
        return "it is Headrace's already"
    ours = _OURS.get(type(module))
    if ours is not None:
        refusal: str | None = ours.refusal(module)
        return refusal
    parent = next((pyg for pyg in _OURS if isinstance(module, pyg)), None)
    if parent is not None:
        return f"a subclass of {parent.__name__} may compute something else"
    return "it has no accelerated form"
