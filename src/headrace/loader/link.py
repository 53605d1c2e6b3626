"""`LinkNeighborLoader`: mini-batches of edges and of the neighborhoods of their ends, with PyG's keywords."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, as_tensor, as_times
from headrace.graph import Dataset, Graph, HeteroGraph
from headrace.loader.link_batch import Ends, LinkBatch, links_of
from headrace.loader.neighbor import NeighborLoader, is_hetero
from headrace.loader.seeds import input_ids_of
from headrace.sample import NegativeSampler, NegativeSampling, Sample
from headrace.sample.negatives.in_time import NegativesInTime
from headrace.sample.negatives.negative import Edges

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


class LinkNeighborLoader(NeighborLoader):
    """Samples the neighborhoods of the ends of batches of edges, with negatives beside them.

    Given a headrace `Dataset` (or `Graph`) it yields `LinkBatch`; given a PyG `Data`, a PyG `Data` with the fields that PyG's
    loader gives. Keywords are PyG's and those of `NeighborLoader`:

    edge_label_index: the edges to start from, [2, edges]; by default all edges of the graph. Their labels: `edge_label`.
    edge_label_time: one time per edge to start from, for sampling by time: of its ends' neighborhoods only the past is sampled, and
        where nodes have times, only those that exist by then are negatives.
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
        edge_label_time: Any = None,
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if "input_nodes" in options:
            raise TypeError("LinkNeighborLoader starts from edges: pass edge_label_index in place of input_nodes")
        if options.pop("input_time", None) is not None:
            raise TypeError("LinkNeighborLoader starts from edges: pass edge_label_time in place of input_time")
        input_id = options.pop("input_id", None)
        options |= {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last, "seed": seed}
        super().__init__(data, num_neighbors, self._no_nodes(edge_label_index, data), **options)
        num_src, num_dst, edges = self._ends()
        self.edge_label_index = _checked(self._input_edges(edge_label_index), num_src, num_dst)
        count = self.edge_label_index.shape[1]
        ids = input_ids_of(input_id, torch.arange(count))
        self.seeds = replace(self.seeds, nodes=self.edge_label_index[0], input_id=ids)
        self._edge_times = self._link_times(edge_label_time, count)
        self.neg_sampling = NegativeSampling.of(neg_sampling)
        if neg_sampling_ratio:
            self.neg_sampling = NegativeSampling("binary", neg_sampling_ratio)
        self.edge_label = _labels_of(edge_label, count, self.neg_sampling)
        self.edges_left = 0
        self._negatives: NegativeSampler | NegativesInTime | None = None
        if self.neg_sampling is not None:
            how: dict[str, Any] = {"num_src": num_src, "num_dst": num_dst, "edges": edges, "seed": seed, "threads": self.threads}
            src_time, dst_time = self._node_times() if self._edge_times is not None else (None, None)
            if src_time is None and dst_time is None:
                self._negatives = NegativeSampler(self.neg_sampling, **how)
            else:
                self._negatives = NegativesInTime(NegativeSampler(self.neg_sampling, **how), src_time, dst_time)

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

    def _link_times(self, edge_label_time: Any, count: int) -> Tensor | None:  # -> [edges]
        """The time of every input edge, after a check that each has one exactly if it needs one."""
        if (edge_label_time is None) != (self._attributes.strategy is None):
            missing = "edge_label_time is not set: sampling by time needs one for every input edge"
            extra = "edge_label_time is for temporal sampling: say by time_attr= where the times of nodes or edges stand"
            raise ValueError(missing if edge_label_time is None else extra)
        if edge_label_time is None:
            return None
        times = as_times(edge_label_time, "edge_label_time")
        if len(times) != count:
            raise ValueError(f"edge_label_time has {len(times)} entries for {count} edges")
        return times

    def _times_of_seeds(self, sampler: Any, nodes: Tensor) -> Tensor | None:
        return None  # links have times, see _link_times

    def _node_times(self) -> tuple[Tensor | None, Tensor | None]:
        """The times of nodes that negatives are drawn from: before their own a node is no negative."""
        times = None if self._dataset is not None else self._attributes.own_times(self._topology)
        return times, times

    def _links(self, index: int, positions: Tensor, epoch: int, threads: int, *, one_type: bool = True) -> Ends:
        src, dst = self.edge_label_index[:, positions]
        label = None if self.edge_label is None else self.edge_label[positions]
        time = None if self._edge_times is None else self._edge_times[positions]
        drawn = None
        if isinstance(self._negatives, NegativesInTime):
            assert time is not None
            drawn = self._negatives.sample(src, time, epoch, index)
        elif self._negatives is not None:
            drawn = self._negatives.sample(src, epoch, index, threads=threads)
        how: dict[str, Any] = {"sampling": self.neg_sampling, "one_type": one_type, "disjoint": self._grows_trees, "time": time}
        return links_of(src, dst, label, negatives=drawn, **how)

    def _start(self, job: tuple[int, Tensor], epoch: int, threads: int) -> Callable[[], Any]:
        index, positions = job
        ends = self._links(index, positions, epoch, threads)
        ids, links = self.edge_ids or self._dataset is None, ends.links
        how: dict[str, Any] = {"time": ends.source_time, "edge_ids": ids, "threads": threads}
        begun = self.neighbor_sampler.start(ends.sources, epoch, index, **how)
        if self.device is not None:
            links = links.to(self.device)
        rest = (self.seeds.input_id[positions], self._rows, self._labels, index, self._graph)
        return lambda: LinkBatch(self._by_link(self._finished(begun, ends.sources), ends), *rest, links=links)

    def _by_link(self, sample: Sample, ends: Ends) -> Sample:
        """The sample with the trees of a link's ends and negatives under one number, that of the link."""
        if sample.tree is None or ends.source_link is None:
            return sample
        return replace(sample, tree=ends.source_link.to(sample.tree)[sample.tree.long()])

    def _finish(self, batch: Any) -> Any:
        self.edges_left += batch.links.left
        return super()._finish(batch)

    def _metadata(self, batch: Any) -> tuple[Any, ...]:
        links = batch.links
        if self.neg_sampling is not None and self.neg_sampling.mode == "triplet":
            return self._on_device(batch.input_id), links.src_index, links.dst_pos_index, links.dst_neg_index, links.seed_time
        return self._on_device(batch.input_id), links.edge_label_index, links.edge_label, links.seed_time

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
