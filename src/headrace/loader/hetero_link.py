"""`LinkNeighborLoader` of heterogeneous graphs: edges of one type, and the neighborhoods of their ends over all types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headrace.graph import EdgeType, HeteroGraph
from headrace.loader.hetero import HeteroBatch, HeteroNeighborLoader
from headrace.loader.link import LinkNeighborLoader
from headrace.loader.link_batch import LinkFields, Links
from headrace.sample.negative import Edges


@dataclass(eq=False, repr=False)
class HeteroLinkBatch(HeteroBatch, LinkFields):
    """A `HeteroBatch` whose seeds are the ends of edges of type `input_type`, each node once and in order of id.

    Links are positions among `seeds` of the edges' source type and of their target type.
    """

    links: Links = field(default_factory=Links)


class HeteroLinkNeighborLoader(LinkNeighborLoader, HeteroNeighborLoader):
    """What `LinkNeighborLoader` is for a PyG `HeteroData`, or a headrace `HeteroGraph`: it is made by calling that with either.

    `edge_label_index` is an edge type, for all its edges, or a pair of one and edges [2, n]. Negatives are drawn among the nodes
    of the source and the target type; `filter=True` avoids the edges of that edge type.

    >>> import headrace as hr
    >>> graph = hr.HeteroGraph.from_edges({("author", "writes", "paper"): ([0, 1, 2], [0, 0, 1])})
    >>> loader = hr.loader.LinkNeighborLoader(graph, [2], ("author", "writes", "paper"), neg_sampling="binary", batch_size=3)
    >>> next(iter(loader)).edge_label.tolist()
    [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    """

    def _no_nodes(self, edge_label_index: Any, data: Any) -> Any:
        self.edge_type, self._which = _edge_type_of(edge_label_index, list(data.edge_types))
        return self.edge_type[0], torch.empty(0, dtype=torch.int64)

    def _ends(self) -> tuple[int, int, Edges]:
        relation = self._typed.relations[self.edge_type]
        return relation.num_src, relation.num_dst, relation

    def _input_edges(self, edge_label_index: Any) -> Any:
        if self._which is not None:
            return self._which
        if not isinstance(self.data, HeteroGraph) and "edge_index" in self.data[self.edge_type]:
            return self.data[self.edge_type].edge_index
        return self._typed.relations[self.edge_type].edge_index()

    def _start(self, job: tuple[int, Tensor], epoch: int, threads: int) -> Callable[[], Any]:
        index, positions = job
        source, _, target = self.edge_type
        sources, targets, links = self._links(index, positions, epoch, threads, one_type=source == target)
        seeds = {source: sources} if targets is None else {source: sources, target: targets}
        sample = self.sampler.sample(seeds, epoch, index, edge_ids=self.edge_ids or self._is_pyg, threads=threads)
        return lambda: HeteroLinkBatch(sample, self.edge_type, self.seeds.input_id[positions], index, links=links)

    def _add_fields(self, result: Any, metadata: tuple[Any, ...]) -> None:
        if self.neg_sampling is None or self.neg_sampling.mode == "binary":
            self._add_link_fields(result[self.edge_type], metadata)
            return
        source, target = result[self.edge_type[0]], result[self.edge_type[2]]
        result[self.edge_type].input_id, source.src_index, target.dst_pos_index, target.dst_neg_index, time = metadata
        source.seed_time = target.seed_time = time
        self._drop_link_fields(result[self.edge_type])


def _edge_type_of(edge_label_index: Any, edge_types: list[EdgeType]) -> tuple[EdgeType, Any]:
    """The edge type of the input edges, and which of them."""
    named, which = (
        (edge_label_index, None)
        if isinstance(edge_label_index, tuple) and all(isinstance(part, str) for part in edge_label_index)
        else (None, None)
    )
    if named is None and isinstance(edge_label_index, (tuple, list)) and len(edge_label_index) == 2:
        named, which = edge_label_index
    # PyG also takes the two node types where only one edge type joins them.
    fits = [t for t in edge_types if named in (t, (t[0], t[2]))] if isinstance(named, tuple) else []
    if len(fits) != 1:
        raise ValueError(
            f"edge_label_index must name one of the edge types {edge_types}, alone or with edges, not {edge_label_index!r}"
        )
    return fits[0], which
