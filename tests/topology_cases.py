"""Graphs cut into the rows of ranks, and samples compared with those of the whole graph."""

import torch

import headrace as hr
from headrace.sample import NeighborSampler
from headrace.store import TableOwners, hash_owners


def awkward_graph(nodes=300, edges=2500, *, hub=2000, dtype=torch.int32, seed=0):
    """Repeated edges, self-loops, a hub, and isolated nodes, the last one among them."""
    draw = torch.Generator().manual_seed(seed)
    isolated = nodes - nodes // 10
    source, target = torch.randint(nodes, (2, edges), generator=draw)
    target = target % isolated
    loops = torch.arange(0, isolated, 7)
    to_hub = torch.randint(nodes, (hub,), generator=draw)
    source = torch.cat([source, source[: edges // 5], loops, to_hub])
    target = torch.cat([target, target[: edges // 5], loops, torch.full_like(to_hub, 3 % isolated)])
    graph = hr.Graph.from_edges(source, target, nodes)
    return hr.Graph(graph.indptr, graph.indices.to(dtype))


def owners_of(kind, nodes, ranks, seed=0):
    """Owners by hashing, by a random table, or by one that gives the last rank nothing, if there are others."""
    if kind == "hash":
        return hash_owners(nodes, ranks, seed)
    draw = torch.Generator().manual_seed(seed)
    return TableOwners(torch.randint(max(ranks - (kind == "none for one"), 1), (nodes,), generator=draw), ranks)


def share_of(graph, owners, rank):
    """(indptr, indices) of the rows that a rank owns."""
    nodes = owners.ids_of(rank)
    rows = [graph.indices[graph.indptr[node] : graph.indptr[node + 1]] for node in nodes.tolist()]
    indptr = torch.zeros(len(nodes) + 1, dtype=torch.int64)
    torch.cumsum(torch.tensor([len(row) for row in rows], dtype=torch.int64), 0, out=indptr[1:])
    return indptr, torch.cat([graph.indices[:0], *rows])


def seeds_of(rank, batch, nodes, count=None):
    """Seeds of a batch: some are repeated, and their number depends on the rank."""
    draw = torch.Generator().manual_seed(1000 * rank + batch)
    seeds = torch.randint(nodes, (3 + 20 * rank if count is None else count,), generator=draw)
    return torch.cat([seeds, seeds[:2]])


def assert_equals_whole(sample, graph, fanouts, request, **options):
    """That a sample is, to the bit, the one of the whole graph."""
    seeds, epoch, batch = request
    whole = NeighborSampler(graph, fanouts, **options).sample(seeds, epoch, batch)
    assert sample.num_sampled_nodes == whole.num_sampled_nodes
    assert sample.num_sampled_edges == whole.num_sampled_edges
    for name in ("nodes", "indptr", "indices"):
        ours, theirs = getattr(sample, name), getattr(whole, name)
        assert ours.dtype == theirs.dtype, name
        assert torch.equal(ours, theirs), name
    assert [(b.num_dst, b.num_src, b.num_edges) for b in sample.blocks] == [
        (b.num_dst, b.num_src, b.num_edges) for b in whole.blocks
    ]
