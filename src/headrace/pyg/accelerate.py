"""`accelerate`: PyG's layers of a model become ours, in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch_geometric.nn import MessagePassing

from headrace.pyg.dropout import Dropout
from headrace.pyg.gat import GATConv, GATv2Conv
from headrace.pyg.gcn import GCNConv
from headrace.pyg.gin import GINConv, GINEConv
from headrace.pyg.layer import Fast
from headrace.pyg.rgcn import RGCNConv
from headrace.pyg.sage import GraphConv, SAGEConv
from headrace.pyg.transformer import TransformerConv
from headrace.pyg.trim import sees_all_rows

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

    def __init__(self, model: nn.Module, layers: list[Layer], swapped: list[Any], trim: bool = False) -> None:
        self.model, self.layers, self._swapped, self.trim = model, tuple(layers), swapped, trim
        self._dropouts = _dropouts_made_ours(model) if trim else {}

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
            layer.__dict__.pop("trims", None)
            layer.__class__ = layer.pyg
        for module in self._dropouts.values():
            module.__class__ = Dropout.plain
        self._swapped.clear()
        self._dropouts.clear()

    def __repr__(self) -> str:
        head = f"Accelerated({len(self.changed)} of {len(self.layers)} message-passing layers{', trimmed' * self.trim})"
        if not self.layers:
            return f"{head}: the model has none"
        names, kinds = max(len(layer.name) for layer in self.layers), max(len(layer.kind) for layer in self.layers)
        lines = (
            f"  {layer.name:{names}}  {layer.kind:{kinds}}  {'changed' if layer.changed else f'kept: {layer.reason}'}"
            for layer in self.layers
        )
        drawn = (f"  {name:{names}}  {'Dropout':{kinds}}  changed: draws its own numbers" for name in self._dropouts)
        return "\n".join([head, *lines, *drawn])


def accelerate(model: nn.Module, *, trim: bool = False) -> Accelerated:
    """Let PyG's layers in `model` sum over neighbors with Headrace's kernels; all else about them stays PyG's.

    Only the class of a layer changes, so that its weights, hooks, optimizers and checkpoints stay valid. What is returned says
    which layers changed and why others did not. Sizes that are not known yet (`in_channels=-1`) may stay so.

    trim: on batches of our loaders, compute in each layer only the rows that a seed still depends on: the output has rows for the
        seeds, to which they are equal, and none behind them (`out[:batch.batch_size]` is the same). Other inputs, such as a whole
        graph, are computed whole. Every `torch.nn.Dropout` draws its numbers by our kernel then. A model that would notice the
        missing rows is refused with a ValueError, as far as can be seen from its modules: norms over nodes, `JumpingKnowledge`,
        layers that are not accelerated, types of nodes.

    >>> import torch_geometric.nn as pyg
    >>> from headrace.pyg import accelerate
    >>> accelerate(pyg.GraphSAGE(8, 16, num_layers=2))
    Accelerated(2 of 2 message-passing layers)
      convs.0  SAGEConv  changed
      convs.1  SAGEConv  changed
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"accelerate takes a torch.nn.Module, not {type(model).__name__}")
    if trim and (reason := untrimmable(model)) is not None:
        raise ValueError(f"trim=True leaves out rows of a batch that no seed depends on, but {reason}: accelerate without trim")
    layers: list[Layer] = []
    swapped: list[Any] = []
    for name, module in model.named_modules():
        if not isinstance(module, MessagePassing):
            continue
        reason = _reason(module)
        if reason is None:
            module.__class__ = _OURS[type(module)]
            swapped.append(module)
        if isinstance(module, Fast):
            module.trims = trim
        layers.append(Layer(name or "(model)", type(module).__name__, reason is None, reason or ""))
    return Accelerated(model, layers, swapped, trim)


def untrimmable(model: nn.Module) -> str | None:
    """Why rows cannot be left out between the layers of a model, or None."""
    for name, module in model.named_modules():
        if isinstance(module, Fast):
            reason = module.refusal(module)
        else:
            reason = _reason(module) if isinstance(module, MessagePassing) else sees_all_rows(module)
        if reason is not None:
            return f"{name or 'the model'} ({type(module).__name__}) needs them: {reason}"
    return None


def _dropouts_made_ours(model: nn.Module) -> dict[str, nn.Module]:
    """Change the class of torch's `Dropout`s that drop anything. Rows that are left out need draws of their own in any case."""
    found: dict[str, nn.Module] = {
        name: module for name, module in model.named_modules() if type(module) is nn.Dropout and module.p > 0
    }
    for module in found.values():
        module.__class__ = Dropout
    return found


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
