"""The device sampler against the CPU's, on CPU tensors: for scripts that run under Triton's interpreter."""

import torch

import headrace as hr
from headrace.sample.device import DeviceSampler
from headrace.sample.weights import cumulative

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
    "temporal inclusive": {"temporal": "uniform", "inclusive": True},
    "temporal last": {"temporal": "last"},
    "temporal last inclusive": {"temporal": "last", "inclusive": True},
    "temporal replace": {"temporal": "uniform", "replace": True},
    "temporal weighted": {"temporal": "uniform", "weighted": True},
}


def small_graph(*, nodes=60, edges=900, hub=None, wide=False, real=False, edge_id=False):
    """Multi-edges, self loops, isolated nodes at the end, rows from none to hundreds; weights of all sizes; times that repeat."""
    torch.manual_seed(5)
    target = (torch.rand(edges) ** 3 * (nodes - 4)).long()
    source = torch.randint(0, nodes - 4, (edges,))
    if hub is not None:
        target = torch.cat([target, torch.full((hub,), 7)])
        source = torch.cat([source, torch.randint(0, nodes - 4, (hub,))])
    weight = torch.exp(3 * torch.randn(len(source)))
    weight[torch.rand(len(source)) < 0.1] = 0.0
    time = torch.randint(0, 50, (len(source),))
    graph = hr.Graph.from_edges(
        source, target, nodes, weight=weight, time=time.double() / 4 if real else time, edge_id=True if edge_id else None
    ).sorted_by_time()
    if wide:
        beside = {"weight": graph.weight, "time": graph.time, "edge_id": graph.edge_id}
        graph = hr.Graph(graph.indptr, graph.indices.long(), **beside)
    return graph


def device_sampler(cpu):
    """The device's twin of a sampler, over the same tensors."""
    drawn = cpu.drawn
    return DeviceSampler(
        drawn.indptr,
        drawn.indices,
        cpu.fanouts,
        seed=cpu.seed,
        replace=cpu.replace,
        disjoint=cpu.disjoint,
        weight=drawn.weight if cpu.weighted else None,
        cumulative=cumulative(drawn, threads=1) if cpu.weighted and cpu.replace else None,
        time=None if cpu.temporal is None else drawn.time,
        last=cpu.temporal == "last",
        inclusive=cpu.inclusive,
        labor=cpu.labor,
        layer_dependency=cpu.layer_dependency,
        batch_dependency=cpu.batch_dependency,
        edge_id=drawn.edge_id,
    )


def seed_times(cpu, count):
    if cpu.temporal is None:
        return None
    times = torch.arange(count) * 11 % 60
    return times.to(cpu.drawn.time.dtype) / 4 if cpu.drawn.time.dtype.is_floating_point else times


def assert_same(expected, found, what=""):
    assert expected.num_sampled_nodes == found.num_sampled_nodes, (what, expected, found)
    assert expected.num_sampled_edges == found.num_sampled_edges, (what, expected, found)
    for name in ("nodes", "indptr", "indices", "edge_id", "tree"):
        a, b = getattr(expected, name), getattr(found, name)
        assert (a is None) == (b is None), (what, name)
        if a is not None:
            assert a.dtype == b.dtype, (what, name, a.dtype, b.dtype)
            assert torch.equal(a, b.cpu()), (what, name, a, b)


def compare(graph, fanouts, batches, *, method, prepare=None, **options):
    """Batches of seeds, one after the other on one workspace."""
    cpu = hr.sample.NeighborSampler(graph, fanouts, seed=11, threads=1, **options)
    device = device_sampler(cpu)
    if prepare is not None:
        prepare(device)
    for batch, seeds in enumerate(batches):
        seeds = torch.tensor(seeds, dtype=torch.int64)
        ids = batch % 2 == 0
        times = seed_times(cpu, len(seeds))
        expected = cpu.sample(seeds, 2, batch + 5, time=times, edge_ids=ids)
        found = device.start(seeds, 2, batch + 5, positions=ids, time=times).finish()
        assert_same(expected, found, (method, fanouts, batch))
    return device
