"""Other systems, if they are installed: how each is given the same graph and asked for the same thing."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headrace.graph import Dataset

Sampled = tuple[int, int]  # edges, nodes


@cache
def pyg_backend() -> str | None:
    """What PyG would sample with here: pyg-lib, torch-sparse, or nothing."""
    if importlib.util.find_spec("torch_geometric") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch_geometric.typing as pyg
    return "pyg-lib" if pyg.WITH_PYG_LIB else "torch-sparse" if pyg.WITH_TORCH_SPARSE else None


@cache
def has_dgl() -> bool:
    """Whether DGL is installed and its binaries load."""
    if importlib.util.find_spec("dgl") is None:
        return False
    try:
        import dgl  # noqa: F401
    except Exception:  # its binaries are tied to torch versions, and say so in many ways
        return False
    return True


def pyg_data(data: Dataset) -> Any:
    """The dataset as a PyG `Data`. Edges are sorted by target, so PyG need not sort them (`is_sorted=True`)."""
    from torch_geometric.data import Data

    return Data(x=data.x, y=data.y, edge_index=data.graph.edge_index(), num_nodes=data.num_nodes)


def pyg_sampler(data: Dataset, fanouts: list[int]) -> Callable[[Tensor], Sampled]:
    """PyG's own sampler, as its loader calls it."""
    from torch_geometric.data import Data
    from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

    graph = Data(edge_index=data.graph.edge_index(), num_nodes=data.num_nodes)
    sampler = NeighborSampler(graph, num_neighbors=fanouts, is_sorted=True)

    def sample(seeds: Tensor) -> Sampled:
        out = sampler.sample_from_nodes(NodeSamplerInput(None, seeds))
        return len(out.row), len(out.node)

    return sample


def dgl_graph(data: Dataset) -> Any:
    """The graph in DGL, in the one layout its sampler and its sum need."""
    import dgl

    csc = (data.graph.indptr, data.graph.indices.long(), torch.empty(0, dtype=torch.int64))
    return dgl.graph(("csc", csc), num_nodes=data.num_nodes).formats("csc")


def dgl_sampler(data: Dataset, fanouts: list[int]) -> Callable[[Tensor], Sampled]:
    """DGL's block sampler."""
    import dgl

    graph = dgl_graph(data)
    sampler = dgl.dataloading.NeighborSampler(fanouts[::-1])  # DGL names the seeds' fanout last

    def sample(seeds: Tensor) -> Sampled:
        nodes, _, blocks = sampler.sample_blocks(graph, seeds)
        return sum(b.num_edges() for b in blocks), len(nodes)

    return sample
