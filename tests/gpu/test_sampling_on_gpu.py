"""Samples of the GPU's kernels against the CPU's: equal to the bit, from the GPU's memory and from the host's."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import headrace as hr
from device_cases import METHODS, assert_same, awkward_graph, times_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]
FANOUTS = [[10, 5, 3], [4, -1], [140, 2]]


@pytest.fixture(scope="module")
def graph():
    """200,000 nodes, rows up to thousands, weights (some 0) and times."""
    plain = hr.generate.community(nodes=200_000, edges=3_000_000, classes=8, features=0).graph
    draw = torch.Generator().manual_seed(1)
    weight = torch.exp(2 * torch.randn(plain.num_edges, generator=draw))
    weight[torch.rand(plain.num_edges, generator=draw) < 0.05] = 0.0
    time = torch.randint(0, 50, (plain.num_edges,), generator=draw)
    return hr.Graph(plain.indptr, plain.indices, weight=weight, time=time).sorted_by_time()


def batches(nodes, count=3, size=700):
    draw = torch.Generator().manual_seed(2)
    for batch in range(count):
        seeds = torch.randint(0, nodes, (size - 200 * batch,), generator=draw)
        yield batch, torch.cat([seeds, seeds[:3]])


def compare(graph, fanouts, *, mode, there=False, **options):
    expected = hr.sample.NeighborSampler(graph, fanouts, seed=7, **options)
    found = hr.sample.NeighborSampler(graph, fanouts, seed=7, device="cuda", mode=mode, **options)
    assert found.place.mode == mode
    for batch, seeds in batches(graph.num_nodes):
        time = times_for(expected, len(seeds))
        ids = batch % 2 == 0
        sample = expected.sample(seeds, 1, batch, time=time, edge_ids=ids)
        if there:
            seeds, time = seeds.cuda(), None if time is None else time.cuda()
        result = found.sample(seeds, 1, batch, time=time, edge_ids=ids)
        assert result.nodes.is_cuda
        assert_same(sample, result, (fanouts, mode, options, batch))
        assert torch.equal(sample.edge_index(), result.edge_index().cpu())


@pytest.mark.parametrize("mode", ["gpu", "uva"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_equals_the_cpu_sampler(graph, method, mode):
    for fanouts in FANOUTS:
        if fanouts[0] > 100 and "disjoint" not in METHODS[method] and "temporal" not in METHODS[method] and mode == "uva":
            continue  # long draws read no other memory
        compare(graph, fanouts, mode=mode, there=mode == "gpu", **METHODS[method])


@pytest.mark.parametrize("method", METHODS)
def test_awkward_graphs_equal_the_cpu_sampler(method):
    for options in ({"hub": 3000}, {"wide": True, "real": True, "edge_id": True}):
        compare(awkward_graph(nodes=3000, edges=40_000, **options), [6, 4], mode="gpu", **METHODS[method])


@pytest.mark.parametrize(
    "options", [{}, {"replace": True}, {"weighted": True}, {"labor": True}, {"weighted": True, "replace": True}]
)
def test_hubs_equal_the_cpu_sampler(options):
    graph = awkward_graph(nodes=1000, edges=5000, hub=100_000)
    expected = hr.sample.NeighborSampler(graph, [20, 3], **options)
    found = hr.sample.NeighborSampler(graph, [20, 3], mode="gpu", **options)
    assert_same(expected.sample([7, 3, 7], edge_ids=True), found.sample([7, 3, 7], edge_ids=True))


@pytest.mark.parametrize("options", [{}, {"disjoint": True}])
def test_samples_under_way_do_not_disturb_one_another(graph, options):
    expected = hr.sample.NeighborSampler(graph, [10, 5], **options)
    found = hr.sample.NeighborSampler(graph, [10, 5], device="cuda", **options)
    jobs = list(batches(graph.num_nodes))
    for _ in range(3):  # captured, then replayed
        pending = [found.start(seeds, 0, batch) for batch, seeds in jobs]
        for batch, seeds in reversed(jobs):
            assert_same(expected.sample(seeds, 0, batch), pending[batch].finish())
    assert found.workspace_bytes > 0


@pytest.mark.parametrize("mode", ["gpu", "uva"])
@pytest.mark.parametrize("options", [{}, {"labor": True}, {"disjoint": True}, {"temporal": "last"}], ids=str)
def test_samples_launched_as_one_are_those_of_one_at_a_time(graph, options, mode):
    expected = hr.sample.NeighborSampler(graph, [10, 5], **options)
    found = hr.sample.NeighborSampler(graph, [10, 5], device="cuda", mode=mode, **options)
    draw = torch.Generator().manual_seed(3)
    sizes = (300, 300, 7, 0, 299, 300, 300, 300, 300, 50, 2)
    seeds = [torch.randint(0, graph.num_nodes, (size,), generator=draw) for size in sizes]
    times = None if expected.temporal is None else [times_for(expected, len(ids)) for ids in seeds]
    for turn in range(3):  # captured, then replayed
        given = seeds if turn == 0 else [ids.cuda() if turn == 1 or i % 2 else ids for i, ids in enumerate(seeds)]
        samples = list(found.samples(given, turn, first=turn, times=times, edge_ids=turn == 1))
        for i, ids in enumerate(seeds):
            time = None if times is None else times[i]
            assert_same(expected.sample(ids, turn, turn + i, time=time, edge_ids=turn == 1), samples[i], (options, turn, i))
    assert {work.lanes for work in found._launched.workspaces._all} == {4, 8}
    assert len(found._launched.workspaces._idle) == len(found._launched.workspaces._all)


def test_streams_and_threads_do_not_disturb_one_another(graph):
    expected = hr.sample.NeighborSampler(graph, [10, 5])
    found = hr.sample.NeighborSampler(graph, [10, 5], device="cuda")
    jobs = [(batch, torch.arange(500) * 7 + 1000 * batch) for batch in range(12)]

    def on_its_stream(job):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            sample = found.sample(job[1], 0, job[0])
            nodes = sample.nodes + 0
        stream.synchronize()
        assert torch.equal(nodes, sample.nodes)
        return sample

    with ThreadPoolExecutor(4) as threads:
        for (batch, seeds), sample in zip(jobs, threads.map(on_its_stream, jobs), strict=True):
            assert_same(expected.sample(seeds, 0, batch), sample)


def test_stamps_begin_again_before_they_overflow(graph):
    expected = hr.sample.NeighborSampler(graph, [10, 5])
    found = hr.sample.NeighborSampler(graph, [10, 5], device="cuda")
    for batch in range(4):
        seeds = torch.arange(300) * 11 + batch
        assert_same(expected.sample(seeds, 0, batch), found.sample(seeds, 0, batch), batch)
        for work in found._launched.workspaces._all:
            work.base = 2**31 - 1 - 100


def test_a_graph_on_the_gpu_or_pinned_is_sampled_there(graph):
    seeds = torch.arange(100)
    expected = hr.sample.NeighborSampler(graph, [5, 5], weighted=True, replace=True).sample(seeds, edge_ids=True)
    there = hr.sample.NeighborSampler(graph.to("cuda"), [5, 5], weighted=True, replace=True)
    assert (there.place.mode, there.device.type) == ("gpu", "cuda")
    assert_same(expected, there.sample(seeds.cuda(), edge_ids=True))
    copy = hr.Graph(graph.indptr.clone(), graph.indices.clone(), weight=graph.weight.clone(), edge_id=graph.edge_id)
    pinned = hr.sample.NeighborSampler(copy.pin(), [5, 5], weighted=True, replace=True)
    assert pinned.place.mode == "uva"  # of a copy without the edges of weight 0, pinned too
    assert_same(expected, pinned.sample(seeds, edge_ids=True))
    uniform = hr.sample.NeighborSampler(copy.pin(), [5, 5])
    assert uniform.place.mode == "uva"
    assert_same(hr.sample.NeighborSampler(graph, [5, 5]).sample(seeds), uniform.sample(seeds))


def test_seeds_on_the_gpu_are_checked_if_asked(graph):
    sampler = hr.sample.NeighborSampler(graph, [3], device="cuda")
    with pytest.raises(IndexError, match=r"seeds\[1\] is 200000"):
        sampler.sample(torch.tensor([0, 200_000], device="cuda"), check=True)
    with pytest.raises(IndexError, match=r"seeds\[0\] is -1"):
        sampler.sample([-1])
    assert sampler.sample(torch.zeros(0, dtype=torch.int64, device="cuda"), check=True).num_edges == 0


def test_all_logarithms_have_the_bits_of_the_contract():
    import numpy as np

    from log_kernel import minus_log_kernel
    from sample.sampling_contract import minus_log

    words = torch.arange(2**23, dtype=torch.int32) << 9
    found = torch.empty(2**23, device="cuda")
    minus_log_kernel[(2**13,)](words.cuda(), found, size=2**10, enable_fp_fusion=False)
    assert np.array_equal(found.cpu().numpy(), minus_log(words.numpy().view(np.uint32)))
