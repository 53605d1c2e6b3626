"""The device sampler on CPU tensors, under Triton's interpreter: the CPU sampler's samples, to the bit."""

import pytest
import torch

import headrace as hr
from headrace.sample.gpu.workspace import Bound
from interpreted import run_interpreted

METHODS = """
from device_cases import METHODS, awkward_graph, compare

graphs = [awkward_graph(edge_id=True), awkward_graph(wide=True, real=True)]
for i, (name, options) in enumerate(METHODS.items()):
    if i % 3 == {part}:
        compare(graphs[i % 2], [3, 2], [[5, 3, 14, 3, 59, 5, 0], [1], [], [0, 7, 9, 7, 2, 58, 4, 11, 30]], **options)
        compare(graphs[(i + 1) % 2], [2, -1, 1], [[5, 3, 5, 58], [7, 0]], **options)
print("equal")
"""

HUBS = """
from device_cases import awkward_graph, compare

hub = awkward_graph(hub=2500)  # over two chunks
for options in ({"weighted": True}, {"labor": True}, {"disjoint": True, "weighted": True}):
    compare(hub, [3], [[7, 3, 0]], **options)
compare(hub, [200], [[7, 0, 3, 7]], labor=True, weighted=True, batch_dependency=2)
compare(hub, [2600], [[7]], weighted=True)  # all of it, in a bounded draw
compare(awkward_graph(), [200, 0], [[0, 3]], temporal="uniform", inclusive=True)
compare(awkward_graph(), [130, 1], [[0, 3], [4, 4]], replace=True, weighted=True)
wide = awkward_graph(hub=66_000)  # two words a draw
for options in ({}, {"replace": True}, {"disjoint": True}, {"weighted": True, "replace": True}):
    compare(wide, [5, 2], [[7, 3, 7]], **options)
compare(wide, [140], [[7, 3]], replace=True)
print("equal")
"""

REUSE = """
from unittest import mock
import torch
import headrace as hr
from device_cases import assert_same, awkward_graph, interpreted_sampler

graph = awkward_graph()
for options in ({}, {"disjoint": True}):
    expected = hr.sample.NeighborSampler(graph, [3, 2], seed=3, **options)
    found = interpreted_sampler(graph, [3, 2], seed=3, **options)
    (work,) = [found._launched.workspaces.take()]
    found._launched.workspaces.give_back(work)

    def same(batch, count):
        seeds = (torch.arange(count) * 7 + batch) % 60
        assert_same(expected.sample(seeds, 0, batch), found.sample(seeds, 0, batch), (options, batch))

    for batch, count in enumerate((4, 9, 2, 30, 30, 1)):  # room grows, and stamps of batches before stay
        same(batch, count)
    before = work.base
    same(6, 30)
    assert work.base > before
    work.base = 2**31 - 1 - 30  # the next stamps would not fit 32 bits
    same(7, 30)
    assert work.base < 2**20
    if options:
        sample = found.sample([1, 2, 3], 0, 7)
        assert int((work.table != -1).sum()) == len(sample.nodes)  # no batch before is in the way
    work.tag = 2**22
    same(8, 12)
    assert work.tag == 1
    same(9, 12)

    # Batches too large to reserve memory for go hop by hop, between others that do not; also after an error.
    with mock.patch("headrace.sample.gpu.workspace._BOUND", 60):
        for batch, count in enumerate((4, 30, 3, 30, 30, 5)):
            same(batch, count)
        with mock.patch("headrace.sample.gpu.device.DeviceSampler._relabel", side_effect=ValueError("broken")):
            try:
                found.sample(torch.arange(40), 0, 0)
                raise AssertionError("no error came through")
            except ValueError:
                pass
        same(6, 5)

    # Samples under way at a time have a workspace each; one that is dropped gives its own back.
    seeds = [[1, 2, 3], [3, 4], [9, 9]]
    pending = [found.start(s, 1, b) for b, s in enumerate(seeds)]
    assert len(found._launched.workspaces._all) == 3
    for b in (2, 0, 1):
        assert_same(expected.sample(seeds[b], 1, b), pending[b].finish())
        assert pending[b].finish() is pending[b].finish()
    found.start([5]), found.start([6])
    del pending
    found.start([7])
    assert len(found._launched.workspaces._idle) == len(found._launched.workspaces._all) == 3
    assert found.workspace_bytes == sum(w.nbytes for w in found._launched.workspaces._all) > 0
for seeds, error in (([60], IndexError), ([-1], IndexError), ([0.5], ValueError)):
    try:
        found.sample(seeds)
    except error:
        continue
    raise AssertionError(seeds)
print("equal")
"""

TOGETHER = """
from unittest import mock
import torch
import headrace as hr
from device_cases import METHODS, assert_same, awkward_graph, interpreted_sampler, times_for

graph = awkward_graph(edge_id=True)
batches = [[5, 3, 14, 3, 59], [1], [], [0, 7, 9, 7, 2, 58, 4, 11, 30], [8], [13, 13], [2, 40]]
for name in ("uniform", "weighted", "labor dependent", "disjoint replace", "temporal last"):
    expected = hr.sample.NeighborSampler(graph, [3, 2], seed=11, **METHODS[name])
    found = interpreted_sampler(graph, [3, 2], seed=11, **METHODS[name])
    times = None if expected.temporal is None else [times_for(expected, len(seeds)) for seeds in batches]
    for together in (1, 3, 4, 8):
        samples = list(found.samples(batches, 2, first=5, times=times, edge_ids=True, together=together))
        assert len(samples) == len(batches)
        for i, seeds in enumerate(batches):
            time = None if times is None else times[i]
            assert_same(expected.sample(seeds, 2, 5 + i, time=time, edge_ids=True), samples[i], (name, together, i))
    every = found._launched.workspaces._all
    assert {work.lanes for work in every} == {1, 4, 8}
    assert len(found._launched.workspaces._idle) == len(every) <= 6
found = interpreted_sampler(graph, [3, 2], seed=11)
expected = hr.sample.NeighborSampler(graph, [3, 2], seed=11)

# A workspace is taken again only when the last of its samples has been copied or dropped.
pending = found._launched.start([(torch.tensor([b, 9]), None) for b in range(3)], 0, 4, positions=False)
(work,) = found._launched.workspaces._all
assert work.lanes == 4 and not found._launched.workspaces._idle
assert_same(expected.sample([2, 9], 0, 6), pending[2].finish())
del pending[0]
assert not found._launched.workspaces._idle
assert_same(expected.sample([1, 9], 0, 5), pending[0].finish())
assert found._launched.workspaces._idle == [work]

# Large samples, those of unknown size, and stamps that would overflow within a group.
work.base = 2**31 - 1 - 100
assert [s.num_edges for s in found.samples(batches, 1)] == [s.num_edges for s in expected.samples(batches, 1)]
with mock.patch("headrace.sample.gpu.device._TOGETHER", 2 * found._launched._bound(9).num_edges):
    assert found._launched.lanes(8, 9) == 2 and found._launched.lanes(8, 200) == 1 and found._launched.lanes(1, 1) == 1
    for a, b in zip(expected.samples(batches, 1), found.samples(batches, 1), strict=True):
        assert_same(a, b)
every, all_of_it = hr.sample.NeighborSampler(graph, [3, -1]), interpreted_sampler(graph, [3, -1])
for a, b in zip(every.samples(batches), all_of_it.samples(batches), strict=True):
    assert_same(a, b)
assert list(found.samples([])) == []
for bad, error in (({"together": 0}, ValueError), ({"times": [[1]]}, ValueError), ({"first": -1}, ValueError)):
    try:
        list(found.samples([[3]], **bad))
    except error:
        continue
    raise AssertionError(bad)
try:
    list(found.samples([[1], [2], [60]]))
    raise AssertionError("node 60")
except IndexError:
    pass
assert len(found._launched.workspaces._idle) == len(found._launched.workspaces._all)
print("equal")
"""

LOGARITHMS = """
import numpy as np
import torch
from log_kernel import minus_log_kernel
from sample.sampling_contract import minus_log

words = torch.arange(2**23, dtype=torch.int32) << 9  # all that differ
found = torch.empty(2**23)
minus_log_kernel[(8,)](words, found, size=2**20, enable_fp_fusion=False)
assert np.array_equal(found.numpy(), minus_log(words.numpy().view(np.uint32)))
print("equal")
"""

PROPERTY = """
import torch
from device_cases import METHODS, awkward_graph, compare
from hypothesis import given, settings
from hypothesis import strategies as st

methods = st.sampled_from(sorted(METHODS))
graphs = st.builds(
    awkward_graph,
    nodes=st.integers(5, 40),
    edges=st.integers(0, 150),
    wide=st.booleans(),
    real=st.booleans(),
    edge_id=st.sampled_from([None, True]),
    seed=st.integers(0, 99),
)


@settings(derandomize=True, deadline=None, max_examples=12, database=None)
@given(graphs, st.lists(st.integers(-1, 6), min_size=1, max_size=3), methods, st.data())
def test(graph, fanouts, method, data):
    seeds = st.lists(st.integers(0, graph.num_nodes - 1), max_size=5)
    compare(graph, fanouts, data.draw(st.lists(seeds, min_size=1, max_size=2)), **METHODS[method])


test()
print("equal")
"""


@pytest.mark.parametrize("part", range(3))
def test_every_method_equals_the_cpu_sampler(part):
    run_interpreted(METHODS.format(part=part))


def test_all_logarithms_have_the_bits_of_the_contract():
    run_interpreted(LOGARITHMS)


def test_hubs_and_long_draws_equal_the_cpu_sampler():
    run_interpreted(HUBS)


def test_many_batches_share_a_workspace():
    run_interpreted(REUSE)


@pytest.mark.slow
def test_samples_launched_as_one_are_those_of_one_at_a_time():
    run_interpreted(TOGETHER)


@pytest.mark.slow
def test_any_graph_and_method_equal_the_cpu_sampler():
    run_interpreted(PROPERTY)


def test_bounds_hold_the_largest_sample():
    bound = Bound.of(10, [3, 2], 25)
    assert (bound.rows, bound.edges) == ((10, 25), (30, 50))
    assert (bound.num_nodes, bound.num_edges) == (85, 80)
    assert Bound.of(10, [3, -1], 25) is None
    assert Bound.of(1 << 20, [20, 20], 1 << 40) is None  # too far away to reserve


def test_start_samples_at_finish_on_the_cpu():
    graph = hr.generate.community(nodes=100, edges=900, classes=2, features=0).graph
    sampler = hr.sample.NeighborSampler(graph, [3, 2], seed=1)
    pending = sampler.start([4, 5], 1, 2, edge_ids=True)
    expected = sampler.sample([4, 5], 1, 2, edge_ids=True)
    assert torch.equal(pending.finish().nodes, expected.nodes)
    assert torch.equal(pending.finish().edge_id, expected.edge_id)
    assert sampler.place.mode == "cpu"
    with pytest.raises(IndexError, match="100"):
        sampler.start([100])


def test_samples_of_many_batches_on_the_cpu():
    graph = hr.generate.community(nodes=100, edges=900, classes=2, features=0).graph
    sampler = hr.sample.NeighborSampler(graph, [3, 2], seed=1)
    found = list(sampler.samples(iter([[4, 5], [6]]), 1, first=2, edge_ids=True))
    for batch, seeds in enumerate([[4, 5], [6]]):
        expected = sampler.sample(seeds, 1, 2 + batch, edge_ids=True)
        assert torch.equal(found[batch].nodes, expected.nodes)
        assert torch.equal(found[batch].edge_id, expected.edge_id)
    with pytest.raises(ValueError, match="together"):
        next(sampler.samples([[1]], together=0))
    with pytest.raises(ValueError, match="temporal"):
        next(sampler.samples([[1]], times=[[2]]))
