"""PyG's `Data`, `HeteroData` and `TemporalData` as datasets, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.graph.dataset import Dataset
from headrace.graph.graph import Graph
from headrace.graph.typed import join_types, node_types, nodes_of_type, typed_edges

_SPLITS = ("train", "val", "test")
_TIMES = ("edge_time", "time", "t")


def from_pyg(data: Any, *, target: str | None = None, undirected: bool = False) -> Dataset:
    """The dataset of a PyG object; see `Dataset.from_pyg`."""
    if hasattr(data, "node_types") and hasattr(data, "edge_types"):
        return _of_hetero(data, target, undirected)
    if all(hasattr(data, name) for name in ("src", "dst", "t")):
        return _of_events(data, undirected)
    if not hasattr(data, "edge_index") and not hasattr(data, "adj_t"):
        raise TypeError(f"from_pyg takes a Data, HeteroData or TemporalData of PyG, not a {type(data).__name__}")
    return _of_data(data, undirected)


def _of_data(data: Any, undirected: bool) -> Dataset:
    src, dst, weight = _edges(data, "data")
    nodes = data.num_nodes
    if nodes is None:
        raise ValueError("how many nodes data has is not known: set data.num_nodes")
    count, extra, info = len(src), dict[str, Tensor](), dict[str, object]()
    for name in ("edge_weight", "edge_attr", "edge_type", *_TIMES):
        values = _get(data, name)
        if values is not None and len(values) != count and (name not in _TIMES or len(values) != nodes):
            raise ValueError(f"data.{name} has {len(values)} rows for {count} edges")
    if (features := _get(data, "edge_attr")) is not None:
        extra["edge_features"] = _host(features).reshape(count, -1)
    if (kinds := _get(data, "edge_type")) is not None:
        columns = [ids.long() for ids in (src, _host(kinds).flatten(), dst)]
        extra["triples"] = torch.stack(columns, dim=1)
        info["num_relations"] = int(_get(data, "num_relations") or (columns[1].max() + 1 if count else 0))
    time = next((values for name in _TIMES if (values := _get(data, name)) is not None and len(values) == count), None)
    if (weights := _get(data, "edge_weight")) is not None:
        weight = _host(weights).flatten()
    graph = Graph.from_edges(
        src,
        dst,
        nodes,
        weight=weight,
        time=None if time is None else _host(time).flatten(),
        edge_id=True,
        undirected=undirected,
    )
    splits, masks = _splits(data, nodes, "data")
    return Dataset(graph, x=_x(data), y=_labels(data, nodes), splits=splits, extra=extra | masks, info=info)


def _of_events(data: Any, undirected: bool) -> Dataset:
    graph = Graph.from_edges(_host(data.src), _host(data.dst), time=_host(data.t), edge_id=True, undirected=undirected)
    message = _get(data, "msg")
    return Dataset(graph, extra={} if message is None else {"edge_features": _host(message).reshape(len(data.src), -1)})


def _of_hetero(data: Any, target: str | None, undirected: bool) -> Dataset:
    counts, left_out = {}, []
    for kind in data.node_types:
        counts[kind] = data[kind].num_nodes
        if counts[kind] is None:
            raise ValueError(f"how many nodes of type {kind!r} there are is not known: set data[{kind!r}].num_nodes")
    for edge_type in data.edge_types:
        if missing := [kind for kind in (edge_type[0], edge_type[2]) if kind not in counts]:
            raise ValueError(
                f"{edge_type} names the node type {missing[0]!r}, which data has not: set data[{missing[0]!r}].num_nodes"
            )
        left_out += [f"{name} of {'-'.join(edge_type)}" for name in data[edge_type] if name not in ("edge_index", "adj_t")]
    labeled = [kind for kind in data.node_types if "y" in data[kind]]
    if target is not None and target not in labeled:
        raise ValueError(f"target is {target!r}, and labels have: {', '.join(labeled) or 'none'}")
    if target is None and len(labeled) > 1:
        raise ValueError(f"nodes of the types {' and '.join(labeled)} have labels: pass target={labeled[0]!r}, or another")
    chosen = target or next(iter(labeled), None)
    splits, masks = _splits(data[chosen], counts[chosen], f"data[{chosen!r}]") if chosen is not None else ({}, {})
    joined = join_types(
        counts,
        {edge_type: _edges(data[edge_type], f"data[{edge_type}]")[:2] for edge_type in data.edge_types},
        x={kind: rows for kind in data.node_types if (rows := _x(data[kind])) is not None and rows.dim() == 2},
        y={} if chosen is None else {chosen: _labels(data[chosen], counts[chosen])},  # type: ignore[dict-item]
        splits={} if chosen is None else {chosen: splits},
        undirected=undirected,
    )
    if masks and chosen is not None:
        of_chosen = nodes_of_type(joined, chosen)
        for name, several in masks.items():
            joined.extra[name] = torch.zeros(len(several), joined.num_nodes, dtype=torch.bool)
            joined.extra[name][:, of_chosen] = several
    if left_out:
        joined.info["left_out"] = left_out
    return joined


def to_pyg(data: Dataset) -> Any:
    """The PyG object of a dataset; see `Dataset.to_pyg`."""
    from torch_geometric.data import Data, HeteroData

    if node_types(data):
        return _to_hetero(data, HeteroData())
    graph = data.graph
    edge_index, place = _in_order(graph)
    fields: dict[str, Any] = {"x": data.x, "y": data.y, "edge_index": edge_index}
    for name, values in (("edge_weight", graph.weight), ("edge_time", graph.time)):
        if values is not None:
            fields[name] = values[place]
    if "edge_features" in data.extra and graph.edge_id is not None:
        fields["edge_attr"] = data.extra["edge_features"][graph.edge_id[place].long()]
    if "triples" in data.extra and len(data.extra["triples"]) == graph.num_edges:
        fields["edge_type"] = data.extra["triples"][:, 1].long()
        fields["edge_index"] = data.extra["triples"][:, ::2].long().T.contiguous()
    fields |= _masks(data, torch.arange(data.num_nodes))
    converted = Data(**{name: value for name, value in fields.items() if value is not None})
    converted.num_nodes = data.num_nodes
    return converted


def _to_hetero(data: Dataset, into: Any) -> Any:
    columns: Any = data.info.get("feature_columns", {})
    for kind in node_types(data):
        nodes = nodes_of_type(data, kind)
        into[kind].num_nodes = len(nodes)
        if data.x is not None and kind in columns:
            into[kind].x = data.x[nodes][:, slice(*columns[kind])]
        if data.y is not None and kind == data.info.get("target"):
            into[kind].y = data.y[nodes]
            for name, mask in _masks(data, nodes).items():
                into[kind][name] = mask
    for edge_type, (src, dst) in typed_edges(data).items():
        into[edge_type].edge_index = torch.stack([src, dst])
    return into


def _masks(data: Dataset, nodes: Tensor) -> dict[str, Tensor]:
    """Masks of the splits among some nodes; [n, k] of k official splits, as PyG has them."""
    masks = {}
    for name in _SPLITS:
        if f"{name}_masks" in data.extra:
            masks[f"{name}_mask"] = data.extra[f"{name}_masks"][:, nodes].T.contiguous()
        elif name in data.splits:
            mask = torch.zeros(data.num_nodes, dtype=torch.bool)
            mask[data.splits[name].long()] = True
            masks[f"{name}_mask"] = mask[nodes]
    return masks


def _in_order(graph: Graph) -> tuple[Tensor, Tensor]:
    """The edges in the order of the list they came from, where ids tell it, and where each stands in the graph."""
    place = torch.arange(graph.num_edges) if graph.edge_id is None else graph.edge_id.argsort(stable=True)
    return graph.edge_index()[:, place], place


def _get(store: Any, name: str) -> Any:
    return store[name] if name in store else None  # noqa: SIM401 - PyG's stores have no such `get`


def _host(values: Any) -> Tensor:
    tensor: Tensor = torch.as_tensor(values).detach().cpu()
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def _x(store: Any) -> Tensor | None:
    values = _get(store, "x")
    if values is None:
        return None
    rows = _host(values.to_dense() if hasattr(values, "to_dense") else values)
    rows = rows.unsqueeze(1) if rows.dim() == 1 else rows
    return rows if rows.dtype.is_floating_point else rows.float()


def _labels(store: Any, nodes: int) -> Tensor | None:
    y = _get(store, "y")
    if y is not None:
        y = _host(y)
        if len(y) != nodes:
            raise ValueError(f"y has {len(y)} rows for {nodes} nodes: labels of whole graphs are not of nodes")
        return y.squeeze(1) if y.dim() == 2 and y.shape[1] == 1 else y
    if _get(store, "train_idx") is None or _get(store, "train_y") is None:
        return None
    labels = torch.full((nodes,), -1)
    for name in _SPLITS:
        if _get(store, f"{name}_idx") is not None and _get(store, f"{name}_y") is not None:
            labels[_host(store[f"{name}_idx"]).long()] = _host(store[f"{name}_y"]).long()
    return labels


def _splits(store: Any, nodes: int, what: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The splits, and masks [k, nodes] where there are k official ones."""
    splits, masks = {}, {}
    for name in _SPLITS:
        mask, ids = _get(store, f"{name}_mask"), _get(store, f"{name}_idx")
        if mask is None and ids is None:
            continue
        if mask is None:
            splits[name] = _host(ids).long()
            continue
        mask = _host(mask)
        if mask.dtype != torch.bool or len(mask) != nodes:
            raise ValueError(f"{what}.{name}_mask must be a bool for each of {nodes} nodes, not {mask.dtype} {list(mask.shape)}")
        if mask.dim() == 2:
            masks[f"{name}_masks"] = mask.T.contiguous()
            mask = mask[:, 0]
        splits[name] = mask.nonzero().flatten()
    return splits, masks


def _edges(store: Any, what: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sources, targets and weights."""
    if (pairs := _get(store, "edge_index")) is not None:
        pairs = _host(pairs)
        if pairs.dim() != 2 or len(pairs) != 2:
            raise ValueError(f"{what}.edge_index has shape {list(pairs.shape)}: it must be [2, edges], sources above targets")
        return pairs[0].contiguous(), pairs[1].contiguous(), None
    if (adjacency := _get(store, "adj_t")) is not None:
        if hasattr(adjacency, "csr"):  # torch_sparse
            indptr, indices, values = adjacency.csr()
        else:
            indptr, indices, values = adjacency.crow_indices(), adjacency.col_indices(), adjacency.values()
        target = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff().cpu())
        ones = values is None or bool((values == 1).all())
        return _host(indices), target, None if ones else _host(values)
    raise ValueError(f"{what} has neither edge_index nor adj_t: it has no edges to import")
