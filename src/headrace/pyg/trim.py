"""Which modules between the layers of a model would notice that rows are missing."""

from __future__ import annotations

from typing import Any

from torch import fx, nn
from torch_geometric import nn as pyg
from torch_geometric.nn import norm, pool

_ROW_BY_ROW = (pyg.MessageNorm,)  # norms of PyG's that look at one node at a time
_NORMS = tuple(getattr(norm, name) for name in norm.__all__)
_POOLS = tuple(kind for name in pool.__all__ if isinstance(kind := getattr(pool, name), type) and issubclass(kind, nn.Module))


def sees_all_rows(module: Any) -> str | None:
    """Why a module needs the rows of all nodes of a batch, or None where it is not known to."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.modules.instancenorm._InstanceNorm):
        return "its statistics are over all nodes"
    if isinstance(module, pyg.LayerNorm):
        return None if module.mode == "node" else "mode='graph' normalizes over all nodes (mode='node' does not)"
    if isinstance(module, _NORMS) and not isinstance(module, _ROW_BY_ROW):
        return "it normalizes over nodes"
    if isinstance(module, _POOLS):
        return "it pools nodes"
    if isinstance(module, pyg.JumpingKnowledge):
        return "it joins rows of several layers"
    if isinstance(module, pyg.HeteroConv | pyg.HeteroDictLinear | fx.GraphModule):
        return "its batches have several types of nodes"
    return None
