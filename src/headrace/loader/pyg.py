"""PyG in, PyG out: batches of a PyG `Data`, field by field what PyG's own loader gives. Needs torch-geometric."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader.utils import index_select
from torch_geometric.sampler import SamplerOutput

from headrace.kernels import gather
from headrace.store import BufferPool


def filtered(data: Data, out: SamplerOutput, *, pool: BufferPool, threads: int) -> Data:
    """`data` cut down to the sampled nodes and edges, with the fields all of PyG's loaders add."""
    batch = copy.copy(data)
    store, target = data._store, batch._store

    def rows(key: str, value: Any, index: Tensor) -> Any:
        dim = data.__cat_dim__(key, value, store)
        if isinstance(value, Tensor) and value.device.type == "cpu" and value.is_contiguous() and dim == 0 and value.dim():
            with torch.no_grad():
                return gather(value, index, out=pool.empty((len(index), *value.shape[1:]), value.dtype), threads=threads)
        return index_select(value, index, dim=dim)

    for key, value in store.items():
        if key == "num_nodes":
            target.num_nodes = out.node.numel()
        elif key == "edge_index":
            target.edge_index = _edge_index(out)
        elif key == "adj_t":
            target.adj_t = _sparse(value, out)
        elif store.is_node_attr(key):
            target[key] = rows(key, value, out.node)
        elif store.is_edge_attr(key):
            target[key] = None if out.edge is None else rows(key, value, out.edge)
    if "n_id" not in batch:
        batch.n_id = out.node
    if out.edge is not None and "e_id" not in batch:
        batch.e_id = out.edge
    batch.batch = out.batch
    batch.num_sampled_nodes = out.num_sampled_nodes
    batch.num_sampled_edges = out.num_sampled_edges
    return batch


def _edge_index(out: SamplerOutput) -> Tensor:
    """Rows and columns stand in one buffer already, unless a transform has replaced them."""
    row, col = out.row, out.col
    gap = (col.data_ptr() - row.data_ptr()) // 8
    if (
        row.dtype == col.dtype == torch.int64
        and gap == len(row)
        and row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
    ):
        whole: Tensor = row.as_strided((2, gap), (gap, 1))
        return whole
    return torch.stack([row, col])


def _sparse(adjacency: Any, out: SamplerOutput) -> Any:
    nodes = out.node.numel()
    if isinstance(adjacency, Tensor):  # a torch.sparse tensor
        values = adjacency.values()[out.edge]
        indptr = torch.from_numpy(np.searchsorted(out.col.numpy(), np.arange(nodes + 1)))
        return torch.sparse_csr_tensor(indptr, out.row, values, (nodes, nodes), check_invariants=False)
    from torch_sparse import SparseTensor

    weights = adjacency.storage.value()
    weights = None if weights is None else weights[out.edge]
    return SparseTensor(row=out.col, col=out.row, value=weights, sparse_sizes=(nodes, nodes), is_sorted=False, trust_data=True)
