"""Samplers of a user's own: one method makes a `Sampler`, `Hops` makes its samples, and what is no sample is named."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_contract import assert_same_sample

import headrace as hr
from headrace.sample import Hops, MixedSampler, NeighborSampler, Sample, Sampler, StartedSample, batch_generator
from headrace.sample.sampler import checked, sampler_of


@pytest.fixture(scope="module")
def graph():
    return hr.generate.community(nodes=300, edges=4_000, classes=4, features=0, seed=1).graph


class AllNeighbors(Sampler):
    """Every in-neighbor, for so many hops."""

    def __init__(self, graph, hops):
        self.graph, self.hops = graph, hops

    def sample(self, seeds, epoch=0, batch=0, *, edge_ids=False, **_):
        hops = Hops(seeds)
        for _ in range(self.hops):
            lengths = self.graph.degrees()[hops.frontier]
            rows = torch.arange(len(lengths)).repeat_interleave(lengths)
            before = (lengths.cumsum(0) - lengths)[rows]
            position = self.graph.indptr[hops.frontier][rows] + torch.arange(len(rows)) - before
            hops.add(rows, self.graph.indices[position], position if edge_ids else None)
        return hops.sample()


class Drawn(Sampler):
    """One neighbor of each seed, with replacement, by the generator of the batch."""

    def __init__(self, graph, seed=0):
        self.graph, self.seed = graph, seed

    def sample(self, seeds, epoch=0, batch=0, **_):
        hops = Hops(seeds)
        rows = self.graph.degrees()[hops.frontier].nonzero().flatten()
        nodes = hops.frontier[rows]
        draw = torch.rand(len(rows), generator=batch_generator(self.seed, epoch, batch))
        hops.add(rows, self.graph.indices[self.graph.indptr[nodes] + (draw * self.graph.degrees()[nodes]).long()])
        return hops.sample()


@given(seeds=st.lists(st.integers(0, 299), max_size=12), hops=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_hops_number_nodes_as_our_own_sampler_does(graph, seeds, hops):
    expected = NeighborSampler(graph, [-1] * hops).sample(seeds, edge_ids=True)
    sample = AllNeighbors(graph, hops).sample(seeds, edge_ids=True)
    assert_same_sample(sample, replace(expected, nodes=expected.nodes.long()))
    assert sample.edge_id.tolist() == expected.edge_id.tolist()
    assert checked(sample, torch.tensor(seeds, dtype=torch.int64), num_nodes=300, name="AllNeighbors") is sample


def test_edges_may_be_added_in_any_order():
    in_order, mixed = Hops([4, 5]), Hops([4, 5])
    in_order.add([0, 0, 1], [8, 9, 8], [10, 11, 12])
    mixed.add([0, 1, 0], [8, 8, 9], [10, 12, 11])
    assert_same_sample(mixed.sample(), in_order.sample())
    assert mixed.sample().edge_id.tolist() == [10, 11, 12]


def test_a_hop_that_adds_nothing_is_a_hop():
    hops = Hops([4, 5])
    hops.add([], [])
    assert hops.frontier.tolist() == []
    hops.add([], [])
    sample = hops.sample()
    assert (sample.num_sampled_nodes, sample.num_sampled_edges) == ((2, 0, 0), (0, 0))
    assert [block.num_dst for block in sample.blocks] == [2, 2]


def test_what_makes_no_hop_is_named():
    with pytest.raises(ValueError, match="at least one hop: call add first"):
        Hops([1]).sample()
    with pytest.raises(IndexError, match=r"rows\[1\] is 2: the frontier has 2 nodes"):
        Hops([1, 3]).add([0, 2], [5, 6])
    with pytest.raises(ValueError, match="one entry per edge, but there are 2 rows"):
        Hops([1, 3]).add([0, 1], [5])


def test_start_and_samples_are_made_of_sample(graph):
    sampler = Drawn(graph, seed=3)
    batches = [[1, 2, 3], [4], [5, 6]]
    expected = [sampler.sample(seeds, 2, 7 + at) for at, seeds in enumerate(batches)]
    started = sampler.start(batches[0], 2, 7)
    assert isinstance(started, StartedSample)
    assert_same_sample(started.finish(), expected[0])
    for sample, same in zip(sampler.samples(batches, 2, first=7), expected, strict=True):
        assert_same_sample(sample, same)
    assert sampler.device == torch.device("cpu")


def test_times_and_options_reach_sample(graph):
    events = hr.Graph.from_edges([0, 1, 2], [3, 3, 3], time=[10, 20, 30])
    ours = NeighborSampler(events, [2], temporal="last")
    sampler = MixedSampler(ours, ours, cpu_threads=1)  # which has samples from the base
    samples = list(sampler.samples([[3, 3], [3]], times=[[30, 15], [40]], edge_ids=True))
    assert [sample.nodes.tolist() for sample in samples] == [[3, 3, 0, 1, 0], [3, 1, 2]]
    assert samples[1].edge_id.tolist() == [1, 2]
    with pytest.raises(ValueError, match="zip"):
        list(sampler.samples([[3, 3], [3]], times=[[30, 15]]))


def test_a_generator_is_of_seed_epoch_and_batch():
    def draw(*key):
        return torch.rand(4, generator=batch_generator(*key)).tolist()

    assert draw(5, 1, 2) == draw(5, 1, 2)
    assert len({tuple(draw(*key)) for key in [(5, 1, 2), (6, 1, 2), (5, 2, 2), (5, 1, 3), (2**64 - 1, 1, 2)]}) == 5


def test_ours_are_samplers(graph):
    for sampler in (NeighborSampler(graph, [2]), Drawn(graph)):
        assert isinstance(sampler, Sampler)
        assert sampler_of(sampler, "neighbor_sampler") is sampler


def test_a_sampler_needs_no_base(graph):
    class Alike:
        device = torch.device("cpu")

        def __init__(self, inner):
            self.sample, self.start, self.samples = inner.sample, inner.start, inner.samples

    alike = Alike(Drawn(graph))
    assert sampler_of(alike, "neighbor_sampler") is alike


def test_what_is_no_sampler_is_named(graph):
    class Narrow(Sampler):
        def sample(self, seeds, epoch):
            raise NotImplementedError

    with pytest.raises(TypeError, match=r"neighbor_sampler must be a headrace.sample.Sampler, but int has no sample, start"):
        sampler_of(7, "neighbor_sampler")
    with pytest.raises(TypeError, match="not the class Drawn: pass an instance"):
        sampler_of(Drawn, "neighbor_sampler")
    with pytest.raises(TypeError, match=r"sample\(seeds, epoch, batch, time=.*Narrow.sample does not take .*take as \*\*_"):
        sampler_of(Narrow(), "neighbor_sampler")
    with pytest.raises(TypeError, match="abstract"):
        type("Nothing", (Sampler,), {})()


def good():
    hops = Hops([7, 3])
    hops.add([0, 0, 1], [5, 3, 5])
    hops.add([0], [9])
    return hops.sample()


WRONG = {
    "of 3 seeds for a batch of 2": {"num_sampled_nodes": (3, 0, 1)},
    "whose num_sampled_nodes is not one longer": {"num_sampled_nodes": (2, 2)},
    "whose nodes have shape": {"nodes": torch.tensor([7, 3, 5])},
    "whose nodes are torch.float32": {"nodes": torch.tensor([7.0, 3.0, 5.0, 9.0])},
    "whose indices are torch.int64, not torch.int32": {"indices": torch.tensor([2, 1, 2, 3])},
    "that does not begin with its seeds": {"nodes": torch.tensor([3, 7, 5, 9])},
    "with nodes 3 to 10, but the graph has nodes 0 to 9": {"nodes": torch.tensor([7, 3, 5, 10])},
    "with nodes -1 to 7": {"nodes": torch.tensor([7, 3, 5, -1])},
    "whose indptr does not rise from 0": {"indptr": torch.tensor([0, 4, 3, 4])},
    "whose rows up to hop 0 have not 3 edges": {"indptr": torch.tensor([0, 2, 2, 4])},
    "whose hop 0 names nodes 1 to 3 of 3": {"indices": torch.tensor([2, 1, 3, 3]).int()},
    "whose hop 1 names nodes -2 to -2": {"indices": torch.tensor([2, 1, 2, -2]).int()},
    "whose edge_id has not one entry": {"edge_id": torch.tensor([1])},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_sample_that_is_none_is_refused(message):
    seeds, sample = torch.tensor([7, 3]), good()
    assert checked(sample, seeds, num_nodes=10, name="Mine") is sample
    with pytest.raises(ValueError, match=f"Mine.sample returned a sample {message}"):
        checked(replace(sample, **WRONG[message]), seeds, num_nodes=10, name="Mine")


def test_a_return_value_of_another_type_is_named():
    with pytest.raises(TypeError, match=r"Mine.sample must return a headrace.sample.Sample, not tuple: Hops makes one"):
        checked((1, 2), torch.tensor([7]), num_nodes=10, name="Mine")
    assert isinstance(good(), Sample)
