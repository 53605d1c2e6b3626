"""PyG in, PyG out: batches of a PyG `Data` or `HeteroData`, field by field what PyG's own loader gives. Needs torch-geometric."""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.utils import index_select
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from headrace.graph.topology.edge_rows import carried, carry
from headrace.kernels import gather
from headrace.loader.batch import rows_of
from headrace.store import BufferPool, Store, rows_for


def stores_of(data: Data, device: torch.device, *, but: Container[str] = ()) -> dict[str, Store]:
    """A store for each attribute of nodes and edges, `but` some, whose gathers end on a GPU."""
    if getattr(data, "edge_index", None) is None:
        raise ValueError("on a GPU a PyG Data is sampled by its edge_index, and this one has only adj_t: use device='cpu'")
    stores: dict[str, Store] = {}
    for key, value in data._store.items():
        has_rows = isinstance(value, Tensor) and value.dim() and data.__cat_dim__(key, value, data._store) == 0
        if key not in but and has_rows and (data._store.is_node_attr(key) or data._store.is_edge_attr(key)):
            stores[key] = rows_for(device, value.detach().contiguous())
    return stores


def cut_down(data: Any, out: SamplerOutput | HeteroSamplerOutput, *, custom_cls: Any, **how: Any) -> Data | HeteroData:
    """What was sampled of `data` (a PyG object, or a pair of its stores), with the fields all of PyG's loaders add."""
    if not isinstance(data, tuple):
        return (filtered_hetero if isinstance(out, HeteroSamplerOutput) else filtered)(data, out, **how)
    from headrace.loader.pyg.remote import fetched

    batch = fetched(data, out, custom_cls)
    (_add_typed_fields if isinstance(out, HeteroSamplerOutput) else _add_fields)(batch, out)
    return batch


def filtered(data: Data, out: SamplerOutput, *, pool: BufferPool, threads: int, stores: Mapping[str, Store] | None = None) -> Data:
    """`data` cut down to the sampled nodes and edges, with the fields all of PyG's loaders add."""
    batch = copy.copy(data)
    cut = _Cut(data, pool, threads, stores)
    nodes = out.node.numel()
    cut.nodes(data._store, batch._store, out.node)
    cut.edges(data._store, batch._store, out.row, out.col, out.edge, sizes=(nodes, nodes))
    for key, store in (stores or {}).items():
        if key not in data:  # rows that the data itself does not have
            batch[key] = rows_of(store, out.node)
    _add_fields(batch, out)
    return batch


def _add_fields(batch: Data, out: SamplerOutput) -> None:
    if "n_id" not in batch:
        batch.n_id = out.node
    if out.edge is not None and "e_id" not in batch:
        batch.e_id = out.edge
    batch.batch = out.batch
    batch.num_sampled_nodes = out.num_sampled_nodes
    batch.num_sampled_edges = out.num_sampled_edges


def filtered_hetero(
    data: HeteroData, out: HeteroSamplerOutput, *, pool: BufferPool, threads: int, stores: Mapping[str, Store] | None = None
) -> HeteroData:
    """`filtered` for data with node and edge types."""
    batch = copy.copy(data)
    cut = _Cut(data, pool, threads, stores)
    edges = out.edge or {}
    for kind in data.node_types:
        cut.nodes(data[kind], batch[kind], out.node[kind])
    for kind in data.edge_types:
        sizes = out.node[kind[0]].numel(), out.node[kind[2]].numel()
        cut.edges(data[kind], batch[kind], out.row[kind], out.col[kind], edges.get(kind), sizes=sizes)
    _add_typed_fields(batch, out)
    return batch


def _add_typed_fields(batch: HeteroData, out: HeteroSamplerOutput) -> None:
    for kind, ids in out.node.items():
        if "n_id" not in batch[kind]:
            batch[kind].n_id = ids
    for kind, ids in (out.edge or {}).items():
        if ids is not None and "e_id" not in batch[kind]:
            batch[kind].e_id = ids
    batch.set_value_dict("batch", out.batch)
    batch.set_value_dict("num_sampled_nodes", out.num_sampled_nodes)
    batch.set_value_dict("num_sampled_edges", out.num_sampled_edges)


class _Cut:
    """Cuts the attributes of a PyG object down to sampled nodes and edges."""

    def __init__(self, data: Data | HeteroData, pool: BufferPool, threads: int, stores: Mapping[str, Store] | None = None) -> None:
        self.data, self.pool, self.threads, self.stores = data, pool, threads, stores or {}

    def nodes(self, store: Any, target: Any, index: Tensor) -> None:
        for key, value in store.items():
            if key == "num_nodes":
                target.num_nodes = index.numel()
            elif store.is_node_attr(key):
                target[key] = self._rows(store, key, value, index)

    def edges(self, store: Any, target: Any, row: Tensor, col: Tensor, index: Tensor | None, *, sizes: tuple[int, int]) -> None:
        for key, value in store.items():
            if key == "edge_index":
                target.edge_index = _edge_index(row, col)
            elif key == "adj_t":
                target.adj_t = _sparse(value, row, col, index, sizes)
            elif store.is_edge_attr(key):
                target[key] = None if index is None else self._rows(store, key, value, index)

    def _rows(self, store: Any, key: str, value: Any, index: Tensor) -> Any:
        if key in self.stores:
            return rows_of(self.stores[key], index)
        dim = self.data.__cat_dim__(key, value, store)
        if isinstance(value, Tensor) and value.device.type == "cpu" and value.is_contiguous() and dim == 0 and value.dim():
            out = self.pool.empty((len(index), *value.shape[1:]), value.dtype)
            with torch.no_grad():
                return gather(value, index, out=out, threads=self.threads)
        if isinstance(value, Tensor):
            return index_select(value, index.to(value.device), dim=dim).to(index.device)
        return index_select(value, index.cpu(), dim=dim)


def _edge_index(row: Tensor, col: Tensor) -> Tensor:
    """`row` and `col` as one tensor: a view of the buffer that holds both, unless a transform has replaced them."""
    gap = (col.data_ptr() - row.data_ptr()) // 8
    if (
        row.dtype == col.dtype == torch.int64
        and gap == len(row)
        and row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
    ):
        whole: Tensor = row.as_strided((2, gap), (gap, 1))
        if (rows := carried(row)) is not None:  # what layers sum over: they need not sort the edges again
            carry(whole, rows)
        return whole
    return torch.stack([row, col])


def _sparse(adjacency: Any, row: Tensor, col: Tensor, edge: Tensor | None, sizes: tuple[int, int]) -> Any:
    sources, targets = sizes
    if isinstance(adjacency, Tensor):  # a torch.sparse tensor
        values = adjacency.values()[edge]
        indptr = torch.from_numpy(np.searchsorted(col.numpy(), np.arange(targets + 1)))
        return torch.sparse_csr_tensor(indptr, row, values, (targets, sources), check_invariants=False)
    from torch_sparse import SparseTensor

    weights = adjacency.storage.value()
    weights = None if weights is None else weights[edge]
    return SparseTensor(row=col, col=row, value=weights, sparse_sizes=(targets, sources), is_sorted=False, trust_data=True)
