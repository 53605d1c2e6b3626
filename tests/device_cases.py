"""What the tests of the device sampler share: methods, awkward graphs, and equality with the CPU's samples to the bit."""

from unittest import mock

import torch

import headrace as hr
from headrace.sample.places import Place

METHODS = {
    "uniform": {},
    "replace": {"replace": True},
    "weighted": {"weighted": True},
    "weighted replace": {"weighted": True, "replace": True},
    "labor": {"labor": True},
    "labor weighted": {"labor": True, "weighted": True},
    "labor dependent": {"labor": True, "layer_dependency": True, "batch_dependency": 3},
    "labor weighted dependent": {"labor": True, "weighted": True, "batch_dependency": 2**32 - 1},
    "disjoint": {"disjoint": True},
    "disjoint replace": {"disjoint": True, "replace": True},
    "disjoint weighted": {"disjoint": True, "weighted": True},
    "disjoint weighted replace": {"disjoint": True, "weighted": True, "replace": True},
    "temporal": {"temporal": "uniform"},
    "temporal inclusive replace": {"temporal": "uniform", "inclusive": True, "replace": True},
    "temporal weighted": {"temporal": "uniform", "weighted": True},
    "temporal last": {"temporal": "last"},
    "temporal last inclusive": {"temporal": "last", "inclusive": True},
    "temporal by edge": {"temporal": "uniform", "hop_time": "edge"},
    "temporal by edge weighted": {"temporal": "uniform", "weighted": True, "hop_time": "edge", "since": 3},
    "temporal last by edge": {"temporal": "last", "hop_time": "edge", "since": 2},
    "temporal window": {"temporal": "uniform", "since": 4, "inclusive": True},
}


def awkward_graph(*, nodes=60, edges=700, hub=0, wide=False, real=False, edge_id=None, seed=5):
    """Multi-edges, self loops, isolated last nodes, rows from none to hundreds (node 7 has `hub` more), weights from 0 over
    those by which any number divided is infinite (ties) to large ones, times that repeat. `wide`: int64; `real`: float64 times."""
    draw = torch.Generator().manual_seed(seed)
    linked = nodes - 4
    target = torch.cat([(torch.rand(edges, generator=draw) ** 3 * linked).long(), torch.full((hub,), 7)])
    source = torch.randint(0, linked, (edges + hub,), generator=draw)
    weight = torch.exp(3 * torch.randn(edges + hub, generator=draw))
    kind = torch.rand(edges + hub, generator=draw)
    weight[kind < 0.1] = 0.0
    weight[kind > 0.9] = 1e-44
    time = torch.randint(0, 50, (edges + hub,), generator=draw)
    graph = hr.Graph.from_edges(source, target, nodes, weight=weight, time=time / 4.0 if real else time, edge_id=edge_id)
    graph = graph.sorted_by_time()
    if not wide:
        return graph
    return hr.Graph(graph.indptr, graph.indices.long(), weight=graph.weight, time=graph.time, edge_id=graph.edge_id)


def interpreted_sampler(graph, fanouts, **options):
    """A sampler whose device is the CPU: its kernels must be run by Triton's interpreter."""
    here = Place("gpu", "for Triton's interpreter"), torch.device("cpu")
    with mock.patch("headrace.sample.neighbor.find_place", return_value=here):
        return hr.sample.NeighborSampler(graph, fanouts, **options)


def times_for(sampler, count):
    """Times of seeds from before all edges to after them."""
    if sampler.temporal is None:
        return None
    times = torch.arange(count) * 11 % 60
    return times / 4.0 if sampler.graph.time.dtype.is_floating_point else times


def assert_same(expected, found, what=None):
    assert expected.num_sampled_nodes == found.num_sampled_nodes, (what, expected, found)
    assert expected.num_sampled_edges == found.num_sampled_edges, (what, expected, found)
    for name in ("nodes", "indptr", "indices", "edge_id", "tree", "edge_time"):
        a, b = getattr(expected, name), getattr(found, name)
        assert (a is None) == (b is None), (what, name)
        if a is not None:
            assert a.dtype == b.dtype, (what, name, a.dtype, b.dtype)
            assert torch.equal(a, b.cpu()), (what, name, a, b)


def compare(graph, fanouts, batches, **options):
    """Batches of seeds, one after the other on one workspace; the device's sampler is returned."""
    expected = hr.sample.NeighborSampler(graph, fanouts, seed=11, threads=1, **options)
    found = interpreted_sampler(graph, fanouts, seed=11, **options)
    for batch, seeds in enumerate(batches):
        request = {
            "time": times_for(expected, len(seeds)),
            "edge_ids": batch % 2 == 0,
            "edge_times": expected.temporal is not None and batch % 3 < 2,
        }
        a, b = (sampler.sample(seeds, 2, batch + 5, **request) for sampler in (expected, found))
        assert_same(a, b, (options, fanouts, batch))
    return found
