"""`LinkNeighborLoader`: mini-batches of edges and of the neighborhoods of their ends, with PyG's keywords."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, as_tensor
from headrace.graph import Dataset, Graph, HeteroGraph
from headrace.loader.base import refuse
from headrace.loader.link_batch import LinkBatch, Links, links_of
from headrace.loader.neighbor import NeighborLoader, is_hetero
from headrace.loader.seeds import Seeds
from headrace.sample import NegativeSampler, NegativeSampling
from headrace.sample.negative import Edges

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

# What a neighbor loader may take but edges as inputs do not, with the values that mean no more than their absence.
_ONLY: dict[str, tuple[Any, ...]] = {
    "edge_label_time": (None,),
    "input_time": (None,),
    "disjoint": (False,),
    "time_attr": (None,),
    "temporal_strategy": ("uniform",),
}


class LinkNeighborLoader(NeighborLoader):
    """Samples the neighborhoods of the ends of batches of edges, with negatives beside them.

    Given a headrace `Dataset` (or `Graph`) it yields `LinkBatch`; given a PyG `Data`, a PyG `Data` with the fields that PyG's
    loader gives. Keywords are PyG's and those of `NeighborLoader`:

    edge_label_index: the edges to start from, [2, edges]; by default all edges of the graph. Their labels: `edge_label`.
    neg_sampling: None, "binary", "triplet", a dictionary of the fields of `headrace.sample.NegativeSampling`, such an object, or
        PyG's. (PyG's `neg_sampling_ratio` is binary with that amount.) Its `filter` draws negatives that are edges again;
        `edges_left` counts those that stayed edges, in the epoch under way or last.

    Labels of positives are moved up by one if the least is 0 and negatives are binary, so that 0 means "no edge". A batch is a
    function of (seed, epoch, index of the batch), its negatives too. The edges of a batch stay in the graph that is sampled: to
    keep a model from seeing the edges it is asked for, take them out of the graph.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=1000, edges=20000, classes=4, features=16)
    >>> loader = hr.loader.LinkNeighborLoader(data, [10, 5], neg_sampling="binary", batch_size=128, shuffle=True, seed=1)
    >>> batch = next(iter(loader))
    >>> batch.edge_label_index.shape, int(batch.edge_label.sum())
    (torch.Size([2, 256]), 128)

    A heterogeneous graph (`HeteroGraph`, or a PyG `HeteroData`) makes a `HeteroLinkNeighborLoader`, which is one of these.
    """

    inputs = "input edges"

    def __new__(cls, data: Any = None, *_: Any, **__: Any) -> LinkNeighborLoader:
        if cls is LinkNeighborLoader and is_hetero(data):
            from headrace.loader.hetero_link import HeteroLinkNeighborLoader

            return object.__new__(HeteroLinkNeighborLoader)
        return object.__new__(cls)

    def __init__(
        self,
        data: Dataset | Graph | HeteroGraph | Data | HeteroData,
        num_neighbors: Any = None,
        edge_label_index: Any = None,
        *,
        edge_label: Any = None,
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        refuse({name: options[name] for name in _ONLY if name in options}, loader=type(self).__name__, only=_ONLY)
        options.pop("edge_label_time", None)
        if "input_nodes" in options:
            raise TypeError("LinkNeighborLoader starts from edges: pass edge_label_index in place of input_nodes")
        super().__init__(data, num_neighbors, self._no_nodes(edge_label_index, data), batch_size=batch_size, seed=seed, **options)
        num_src, num_dst, edges = self._ends()
        self.edge_label_index = _checked(self._input_edges(edge_label_index), num_src, num_dst)
        count = self.edge_label_index.shape[1]
        self.seeds = Seeds(self.edge_label_index[0], torch.arange(count), batch_size, shuffle, drop_last, seed, self.seeds.shard)
        self.neg_sampling = NegativeSampling.of(neg_sampling)
        if neg_sampling_ratio:
            self.neg_sampling = NegativeSampling("binary", neg_sampling_ratio)
        self.edge_label = _labels_of(edge_label, count, self.neg_sampling)
        self.edges_left = 0
        self._negatives = None
        if self.neg_sampling is not None:
            self._negatives = NegativeSampler(
                self.neg_sampling, num_src=num_src, num_dst=num_dst, edges=edges, seed=seed, threads=self.threads
            )

    def __iter__(self) -> Any:
        self.edges_left = 0
        return super().__iter__()

    def _no_nodes(self, edge_label_index: Any, data: Any) -> Any:
        """An empty list of input nodes: this loader starts from edges."""
        return torch.empty(0, dtype=torch.int64)

    def _ends(self) -> tuple[int, int, Edges]:
        """How many sources and targets there may be, and the edges between them."""
        return self._graph.num_nodes, self._graph.num_nodes, self._graph

    def _input_edges(self, edge_label_index: Any) -> Any:
        if edge_label_index is None and self._dataset is None:
            edge_label_index = getattr(self.data, "edge_index", None)
        return self._graph.edge_index() if edge_label_index is None else edge_label_index

    def _links(
        self, index: int, positions: Tensor, epoch: int, threads: int, *, one_type: bool = True
    ) -> tuple[Tensor, Tensor | None, Links]:
        src, dst = self.edge_label_index[:, positions]
        label = None if self.edge_label is None else self.edge_label[positions]
        drawn = None if self._negatives is None else self._negatives.sample(src, epoch, index, threads=threads)
        return links_of(src, dst, label, negatives=drawn, sampling=self.neg_sampling, one_type=one_type)

    def _start(self, job: tuple[int, Tensor], epoch: int, threads: int) -> Callable[[], Any]:
        index, positions = job
        seeds, _, links = self._links(index, positions, epoch, threads)
        ids = self.edge_ids or self._dataset is None
        begun = self.sampler.start(seeds, epoch, index, edge_ids=ids, threads=threads)
        if self.device is not None:
            links = links.to(self.device)
        rest = (self.seeds.input_id[positions], self._rows, self._labels, index, self._graph)
        return lambda: LinkBatch(self._finished(begun, seeds), *rest, links=links)

    def _finish(self, batch: Any) -> Any:
        self.edges_left += batch.links.left
        return super()._finish(batch)

    def _metadata(self, batch: Any) -> tuple[Any, ...]:
        links = batch.links
        if self.neg_sampling is not None and self.neg_sampling.mode == "triplet":
            return self._on_device(batch.input_id), links.src_index, links.dst_pos_index, links.dst_neg_index, None
        return self._on_device(batch.input_id), links.edge_label_index, links.edge_label, None

    def _add_fields(self, result: Any, metadata: tuple[Any, ...]) -> None:
        if self.neg_sampling is not None and self.neg_sampling.mode == "triplet":
            result.input_id, result.src_index, result.dst_pos_index, result.dst_neg_index, result.seed_time = metadata
            self._drop_link_fields(result)
        else:
            self._add_link_fields(result, metadata)

    def _add_link_fields(self, result: Any, metadata: tuple[Any, ...]) -> None:
        result.input_id, result.edge_label_index, result.edge_label, result.edge_label_time = metadata

    def _drop_link_fields(self, result: Any) -> None:
        for name in ("edge_label_index", "edge_label_time"):  # that the data itself may have
            if name in result:
                del result[name]


def _checked(edge_label_index: Any, num_src: int, num_dst: int) -> Tensor:
    """The input edges, once every end is known to be a node.  # -> [2, edges], int64"""
    edges = as_tensor(edge_label_index, "edge_label_index")
    if edges.dim() != 2 or edges.shape[0] != 2:
        raise ValueError(f"edge_label_index must have shape [2, edges], not {tuple(edges.shape)}")
    ids = as_ids(edges.flatten(), "edge_label_index", dtype=torch.int64).view(2, -1)
    for end, nodes, count in (("sources", ids[0], num_src), ("targets", ids[1], num_dst)):
        low, high = _native.id_range(nodes, 1)
        if low < 0 or high >= count:
            raise ValueError(f"edge_label_index holds {end} from {low} to {high}, but the graph has nodes 0 to {count - 1}")
    return ids


def _labels_of(edge_label: Any, count: int, sampling: NegativeSampling | None) -> Tensor | None:
    if edge_label is None:
        return None
    label = as_tensor(edge_label, "edge_label")
    if label.dim() == 0 or len(label) != count:
        raise ValueError(f"edge_label has shape {tuple(label.shape)} for {count} edges")
    if sampling is None:
        return label
    if sampling.mode == "triplet":
        raise ValueError("triplets have no labels: leave edge_label out, and tell positives from negatives by their fields")
    return label + 1 if len(label) and label.min() == 0 else label
