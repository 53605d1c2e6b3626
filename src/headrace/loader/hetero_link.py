"""`LinkNeighborLoader` of heterogeneous graphs: edges of one type, and the neighborhoods of their ends over all types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from headrace.graph import EdgeType, HeteroGraph, Relation
from headrace.loader.hetero import HeteroBatch, HeteroNeighborLoader
from headrace.loader.link import LinkNeighborLoader
from headrace.loader.link_batch import Ends, LinkFields, Links
from headrace.loader.pyg.keywords import described
from headrace.sample import HeteroSample
from headrace.sample.negatives.negative import Edges


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
        edge_types = [a.edge_type for a in data[1].get_all_edge_attrs()] if isinstance(data, tuple) else list(data.edge_types)
        self.edge_type, self._which = _edge_type_of(edge_label_index, edge_types)
        return self.edge_type[0], torch.empty(0, dtype=torch.int64)

    def _ends(self) -> tuple[int, int, Edges]:
        relation = self._typed.relations.get(self.edge_type)
        nodes = self._typed.num_nodes
        if relation is None:  # input edges of a type that the graph has none of
            relation = Relation(torch.zeros(nodes[self.edge_type[2]] + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64), 0)
        return nodes[self.edge_type[0]], nodes[self.edge_type[2]], relation

    def _input_edges(self, edge_label_index: Any) -> Any:
        if self._which is not None:
            return self._which
        if not isinstance(self.data, HeteroGraph) and "edge_index" in self._topology[self.edge_type]:
            return self._topology[self.edge_type].edge_index
        return self._typed.relations[self.edge_type].edge_index()

    def _start(self, job: tuple[int, Tensor], epoch: int, threads: int) -> Callable[[], Any]:
        index, positions = job
        source, _, target = self.edge_type
        ends = self._links(index, positions, epoch, threads, one_type=source == target)
        seeds, times = {source: ends.sources}, None
        if ends.targets is not None:
            seeds[target] = ends.targets
        if ends.source_time is not None:
            times = {source: ends.source_time} | ({} if ends.target_time is None else {target: ends.target_time})
        sample = self._with_links(self._typed_sample(seeds, times, epoch, index, threads), ends)
        return lambda: HeteroLinkBatch(sample, self.edge_type, self.seeds.input_id[positions], index, links=ends.links)

    def _with_links(self, sample: HeteroSample, ends: Ends) -> HeteroSample:
        """The sample with the trees of a link's ends and negatives under one number, that of the link."""
        if sample.tree is None:
            return sample
        links = {self.edge_type[2]: ends.target_link, self.edge_type[0]: ends.source_link}
        numbers = [link for kind in self._typed.node_types if (link := links.get(kind)) is not None]
        label = torch.cat(numbers)
        return replace(sample, tree={kind: label[tree] for kind, tree in sample.tree.items()})

    def _node_times(self) -> tuple[Tensor | None, Tensor | None]:
        own = self._attributes.node_times(self._topology) if self._is_pyg else {}
        return own.get(self.edge_type[0]), own.get(self.edge_type[2])

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
    # PyG also takes the two node types where only one edge type joins them, and edges of a type that the data has none of.
    fits = [t for t in edge_types if named in (t, (t[0], t[2]))] if isinstance(named, tuple) else []
    if not fits and which is not None and isinstance(named, tuple) and len(named) in (2, 3):
        fits = [(named[0], named[1] if len(named) == 3 else "to", named[-1])]
    if len(fits) != 1:
        raise ValueError(
            f"edge_label_index must name one of the edge types {edge_types}, alone or with edges, not {described(edge_label_index)}"
        )
    return fits[0], which
