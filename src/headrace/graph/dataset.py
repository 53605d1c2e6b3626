"""`Dataset`: a graph with its rows, in memory or memory-mapped from a directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from headrace.graph.graph import Graph
from headrace.graph.reorder.decide import auto
from headrace.graph.reorder.move import Columns, columns_of, moved_extra, moved_id_map
from headrace.graph.reorder.orders import Progress, order_by_name
from headrace.graph.saved.io import ArrayReader, DatasetWriter, read_version
from headrace.graph.saved.names import Names
from headrace.graph.topology.permutation import checked_order, inverse

_NAMES = "names_"
_GRAPH_ARRAYS = ("indptr", "indices", "weight", "time", "edge_id")


@dataclass(eq=False)
class Dataset:
    """A graph with features, labels and splits, each of them optional but the graph.

    `splits` names node ids: `{"train": ids, "val": ids, "test": ids}`. `extra` holds any further arrays of the data (triples,
    times, further splits) under their own names. `info` is a dictionary of plain values (name, classes, how it was made).
    `id_map` is a Parquet file with columns `node` and `id`, which joins node ids back to those an import began with. `order` is the
    permutation of a dataset that was reordered: the id that each node had before. `names` are files (texts with a line for each, or
    Parquet as `id_map`) of what "nodes" and "relations" are called; nodes by the ids they had before any reordering.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=100, edges=600, classes=3, features=8)
    >>> data.save("tiny")                                                              # doctest: +SKIP
    >>> hr.open("tiny").graph.num_edges                                                # doctest: +SKIP
    600
    """

    graph: Graph
    x: Tensor | None = None
    y: Tensor | None = None
    splits: dict[str, Tensor] = field(default_factory=dict)
    extra: dict[str, Tensor] = field(default_factory=dict)
    info: dict[str, object] = field(default_factory=dict)
    id_map: Path | None = None
    order: Tensor | None = None
    names: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("x", "y", "order"):
            rows = getattr(self, name)
            if rows is not None and len(rows) != self.graph.num_nodes:
                raise ValueError(f"{name} has {len(rows)} rows for {self.graph.num_nodes} nodes")
        for name, ids in list(self.splits.items()):
            if ids.dtype == torch.bool:
                if len(ids) != self.graph.num_nodes:
                    raise ValueError(f"split {name!r} masks {len(ids)} of {self.graph.num_nodes} nodes")
                self.splits[name] = ids.nonzero().flatten()

    @classmethod
    def from_pyg(cls, data: Any, *, target: str | None = None, undirected: bool = False) -> Dataset:
        """The dataset of a PyG `Data`, `HeteroData` or `TemporalData`; nothing of it is changed.

        Taken are `edge_index` (or `adj_t`), `x`, `y`, masks or `train_idx` and the like (masks [nodes, k] are k official
        splits), `edge_weight`, `edge_attr` (`extra["edge_features"]`), `edge_type` (`extra["triples"]`), and times of edges.
        Of a `HeteroData` (see `headrace.graph.typed`), `target` is the type whose labels are meant, where several have some;
        attributes of its edges are left out, and named in `info["left_out"]`. `undirected` adds the reverse of every edge.

        >>> import torch
        >>> from torch_geometric.data import Data
        >>> Dataset.from_pyg(Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]])))
        Dataset(num_nodes=3, num_edges=2, num_features=2)
        """
        from headrace.graph.convert.pyg import from_pyg

        return from_pyg(data, target=target, undirected=undirected)

    def to_pyg(self) -> Any:
        """The same as a PyG `Data`, or a `HeteroData` where nodes have types; edges in the order of the list they came from."""
        from headrace.graph.convert.pyg import to_pyg

        return to_pyg(self)

    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        *,
        features: Sequence[str] | str = (),
        label: str | None = None,
        split: str | None = None,
        weight: str | None = None,
    ) -> Dataset:
        """The dataset of a NetworkX graph. `features`, `label`, `split` and `weight` name attributes of its nodes and edges.

        Nodes are numbered in the order of `graph.nodes`; `id_map` has what they are called. A graph that is not directed has
        each edge in both directions.
        """
        from headrace.graph.convert.networkx import from_networkx

        return from_networkx(graph, features=features, label=label, split=split, weight=weight)

    @classmethod
    def from_scipy(cls, matrix: Any, *, x: Any = None, y: Any = None, splits: dict[str, Any] | None = None) -> Dataset:
        """The dataset of a sparse adjacency matrix: entry (i, j) is the edge from i to j. Values are weights, unless all are 1.

        `x`, `y` and `splits` are arrays, as `Dataset` takes them; `x` may be sparse.
        """
        from headrace.graph.convert.matrices import from_scipy

        return from_scipy(matrix, x=x, y=y, splits=splits)

    @classmethod
    def from_dgl(cls, graph: Any, *, x: str = "feat", y: str = "label") -> Dataset:
        """The dataset of a DGL graph, with or without types; `x` and `y` name what `ndata` calls features and labels.

        Masks of the splits are `train_mask`, `val_mask` and `test_mask`; weights of edges `edata["weight"]`.
        """
        from headrace.graph.convert.matrices import from_dgl

        return from_dgl(graph, x=x, y=y)

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes

    @property
    def num_edges(self) -> int:
        return self.graph.num_edges

    @property
    def num_features(self) -> int:
        return 0 if self.x is None else 1 if self.x.dim() == 1 else self.x.shape[1]

    @property
    def num_classes(self) -> int:
        """Classes of the labels: columns where `y` is multi-label, else one more than the largest label."""
        if "num_classes" in self.info:
            return int(self.info["num_classes"])  # type: ignore[call-overload,no-any-return]
        if self.y is None or self.y.numel() == 0:
            return 0
        return self.y.shape[1] if self.y.dim() == 2 else int(self.y.max()) + 1

    @property
    def nbytes(self) -> int:
        """Bytes of the graph and of all rows."""
        rows = [self.x, self.y, self.order, *self.splits.values(), *self.extra.values()]
        return self.graph.nbytes + sum(r.nbytes for r in rows if r is not None)

    @property
    def original_ids(self) -> Tensor:
        """The id that each node had before the dataset was reordered, however often, or its own.  # -> [num_nodes]"""
        return torch.arange(self.num_nodes) if self.order is None else self.order

    def reorder(
        self,
        order: Tensor | str,
        *,
        epochs: int = 100,
        dim: int | None = None,
        ids: Collection[str] | Columns = (),
        keep: Collection[str] = (),
        progress: Progress | None = None,
        threads: int | None = None,
    ) -> Dataset:
        """The dataset with other node ids: node i is the one that was `order[i]`.

        `order` is a permutation, the name of one of `headrace.reorder.ORDERS`, or "auto", which reorders only where that is
        predicted to pay within `epochs` epochs at width `dim` (the features' unless given) and leaves its reason in
        `info["order_reason"]`. Graph, features, labels, splits and id map are relabeled; splits keep the sequence of their
        nodes. `original_ids` names each node as before.

        Of `extra`, arrays with a row per node and [k, num_nodes] masks move with the nodes. Arrays of node ids must be named in
        `ids` (with their columns, if not all are ids: `ids={"train": (0, 2)}`), and what is neither in `keep`.

        >>> import headrace as hr
        >>> data = hr.generate.community(nodes=100, edges=600, classes=3, features=8)
        >>> moved = data.reorder("rabbit")
        >>> bool((moved.x == data.x[moved.original_ids]).all())
        True
        """
        info = dict(self.info)
        if isinstance(order, str) and order == "auto":
            width = dim or self.num_features
            if not width:
                raise ValueError("there are no features whose width an order could be chosen by: give dim")
            decision = auto(self.graph, width, epochs=epochs, progress=progress, threads=threads)
            info["order_reason"] = decision.reason
            if decision.order is None:
                return replace(self, info=info)
            info["order"], order = decision.name, decision.order
        elif isinstance(order, str):
            info["order"], order = order, order_by_name(self.graph, order, progress=progress, threads=threads)
        else:
            order, info["order"] = checked_order(order, self.num_nodes, threads), "given"
        position = inverse(order, threads=threads)
        return Dataset(
            self.graph.reordered(order, threads=threads),
            x=None if self.x is None else self.x.index_select(0, order),
            y=None if self.y is None else self.y.index_select(0, order),
            splits={name: position[nodes.long()].to(nodes.dtype) for name, nodes in self.splits.items()},
            extra=moved_extra(self.extra, order, position, ids=columns_of(ids), keep=keep),
            info=info,
            id_map=None if self.id_map is None else moved_id_map(self.id_map, order),
            order=self.original_ids.index_select(0, order),
            names=dict(self.names),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to directory `path`. What was there before stays whole until the new files are complete."""
        with DatasetWriter(path) as writer:
            for name, array in self._arrays().items():
                writer.write(name, array)
            writer.info = dict(self.info)
            if self.id_map is not None:
                shutil.copyfile(self.id_map, writer.side_file("ids"))
            for name, path in self.names.items():
                Names(path).save(writer.side_file(f"{_NAMES}{name}"))

    def _arrays(self) -> dict[str, Tensor]:
        named: dict[str, Tensor | None] = {name: getattr(self.graph, name) for name in _GRAPH_ARRAYS}
        named |= {"x": self.x, "y": self.y, "order": self.order}
        named |= {f"split_{name}": ids for name, ids in self.splits.items()}
        named |= {f"extra_{name}": array for name, array in self.extra.items()}
        return {name: array for name, array in named.items() if array is not None}

    def __repr__(self) -> str:
        parts = [f"num_nodes={self.num_nodes}", f"num_edges={self.num_edges}"]
        if self.x is not None:
            parts.append(f"num_features={self.num_features}")
        if self.y is not None:
            parts.append(f"num_classes={self.num_classes}")
        if self.splits:
            parts.append("splits=" + "/".join(f"{n}:{len(i)}" for n, i in self.splits.items()))
        return f"Dataset({', '.join(parts)})"


def open_dataset(path: str | os.PathLike[str], *, verify: bool | Literal["small"] = False) -> Dataset:
    """Open a dataset directory. Arrays are memory-mapped: nothing is read until it is used.

    `verify` reads everything and compares checksums, so that a damaged file is found before it is trained on; "small" does so where
    all files together are at most 256 MiB, as the commands do.
    """
    return read_version(Path(path), lambda reader: _dataset(reader, verify=verify))


def _dataset(reader: ArrayReader, *, verify: bool | Literal["small"]) -> Dataset:
    reader.verify(verify)
    arrays: Mapping[str, Tensor] = {name: reader.open(name) for name in reader.names}
    if "indptr" not in arrays or "indices" not in arrays:
        raise ValueError(f"{reader.path} holds no graph: it lists {sorted(arrays)}, but not indptr and indices")

    def group(prefix: str) -> dict[str, Tensor]:
        return {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}

    return Dataset(
        Graph(**{name: arrays[name] for name in _GRAPH_ARRAYS if name in arrays}),
        x=arrays.get("x"),
        y=arrays.get("y"),
        splits=group("split_"),
        extra=group("extra_"),
        info=reader.info,
        id_map=reader.files.get("ids"),
        order=arrays.get("order"),
        names={name[len(_NAMES) :]: file for name, file in reader.files.items() if name.startswith(_NAMES)},
    )
