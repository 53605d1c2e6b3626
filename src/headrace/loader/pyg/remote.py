"""Pairs (FeatureStore, GraphStore) of PyG: topology from the one, rows from the other. Needs torch-geometric."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.data import remote_backend_utils as sizes
from torch_geometric.loader.utils import filter_custom_hetero_store, filter_custom_store
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput


def is_pair(data: Any) -> bool:
    """Whether `data` is a pair of PyG's stores."""
    return isinstance(data, tuple) and len(data) == 2 and isinstance(data[0], FeatureStore) and isinstance(data[1], GraphStore)


def has_types(pair: tuple[FeatureStore, GraphStore]) -> bool:
    """Whether the edges of a pair have types."""
    return any(attribute.edge_type is not None for attribute in pair[1].get_all_edge_attrs())


def topology(pair: tuple[FeatureStore, GraphStore], *, time_attr: str | None) -> Data | HeteroData:
    """The edges and numbers of nodes of a pair as one object, with the attribute that sampling by time reads."""
    features, graph = pair
    attributes = features.get_all_tensor_attrs()
    times = [copy.copy(attribute) for attribute in attributes if attribute.attr_name == time_attr]
    if not has_types(pair):
        row, col, _ = graph.coo()
        count = max(max(attribute.size) for attribute in graph.get_all_edge_attrs())
        data: Data | HeteroData = Data(edge_index=torch.stack([row, col]), num_nodes=count)
        for attribute in times:
            attribute.index = None
            data[time_attr] = features.get_tensor(attribute)
        return data
    data = HeteroData()
    for kind in dict.fromkeys(attribute.group_name for attribute in attributes if isinstance(attribute.group_name, str)):
        data[kind].num_nodes = sizes.size(features, graph, kind)
    rows, cols, _ = graph.coo()
    for edge_type, row in rows.items():
        data[edge_type].edge_index = torch.stack([row, cols[edge_type]])
    for attribute in times:
        attribute.index = None
        data[attribute.group_name][time_attr] = features.get_tensor(attribute)
    return data


def fetched(
    pair: tuple[FeatureStore, GraphStore], out: SamplerOutput | HeteroSamplerOutput, custom_cls: Any | None
) -> Data | HeteroData:
    """What was sampled with the rows that the feature store returns for it."""
    fetch = filter_custom_hetero_store if isinstance(out, HeteroSamplerOutput) else filter_custom_store
    return fetch(*pair, out.node, out.row, out.col, out.edge, custom_cls)
