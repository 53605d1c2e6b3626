"""PyG's `subgraph_type`: which edges between sampled nodes a batch has. Needs torch-geometric."""

from __future__ import annotations

import copy

from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from headrace.graph import Graph, HeteroGraph
from headrace.sample.induced import HeteroInduced, Induced


class Subgraph:
    """Turns a sample into a subgraph of type `kind`.

    "directional" is the sample as it is: the edges that were drawn. "bidirectional" has their reverses too, and "induced" all edges
    of the graph between the sampled nodes. Neither of these has hops, so what counts nodes and edges by hops is None, as in PyG.
    """

    def __init__(self, kind: str, graph: Graph | HeteroGraph) -> None:
        self.kind = kind
        self._induced = Induced(graph) if kind == "induced" and isinstance(graph, Graph) else None
        self._typed = HeteroInduced(graph) if kind == "induced" and isinstance(graph, HeteroGraph) else None

    def of(self, out: SamplerOutput | HeteroSamplerOutput, *, threads: int) -> SamplerOutput | HeteroSamplerOutput:
        if self.kind == "directional":
            return out
        if self.kind == "bidirectional":
            return out.to_bidirectional()
        out = copy.copy(out)
        out.num_sampled_nodes = out.num_sampled_edges = None
        if self._typed is None:
            assert self._induced is not None
            (out.row, out.col), edge = self._induced.edges(out.node, threads=threads)
            out.edge = edge.long()
            return out
        between = self._typed.edges(out.node, threads=threads)
        out.row = {kind: edges[0] for kind, (edges, _) in between.items()}
        out.col = {kind: edges[1] for kind, (edges, _) in between.items()}
        out.edge = {kind: ids.long() for kind, (_, ids) in between.items()}
        return out
