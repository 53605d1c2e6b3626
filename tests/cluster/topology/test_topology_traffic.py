"""The byte formulas: what a planner expects, and what a sample cost."""

import pytest
import torch

import headrace as hr
from headrace.cluster.topology import asked_sizes, expected_sample_bytes, sample_traffic
from headrace.ranks import Traffic
from headrace.sample import NeighborSampler
from headrace.store import TableOwners, hash_owners


def test_the_sizes_of_a_sample_are_counted_by_owner():
    graph = hr.Graph.from_edges([1, 2, 3, 3], [0, 0, 1, 3], 4)
    owners = TableOwners(torch.tensor([0, 1, 0, 1]), 2)
    sizes = asked_sizes(NeighborSampler(graph, [-1, -1]).sample([0, 0, 3]), owners)
    assert sizes.nodes == ((2, 1), (1, 1))  # the seeds 0, 0 and 3, then 1 and 2
    assert sizes.edges == ((4, 1), (0, 1))


def test_a_call_costs_what_the_formula_says():
    graph = hr.Graph.from_edges([1, 2, 3, 3], [0, 0, 1, 3], 4)
    owners = TableOwners(torch.tensor([0, 1, 0, 1]), 2)
    sizes = asked_sizes(NeighborSampler(graph, [-1, -1]).sample([0, 0, 3]), owners)
    of_first, of_second = (sample_traffic([[sizes], []], rank, hops=2) for rank in range(2))
    assert of_first["counts"] == of_second["counts"] == Traffic(32, 32)
    assert of_first["nodes"] == Traffic(2 * (16 + 4), 0)
    assert of_first["neighbors"] == Traffic(0, 2 * (4 + 4))
    assert [of_second[phase].received for phase in ("nodes", "neighbors")] == [40, 0]
    assert [of_second[phase].sent for phase in ("nodes", "neighbors")] == [0, 16]


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_expected_bytes_are_near_those_of_hashed_owners(ranks):
    graph = hr.generate.community(nodes=20_000, edges=200_000, classes=4, features=0).graph
    sample = NeighborSampler(graph, [10, 5]).sample(torch.arange(500))
    sizes = asked_sizes(sample, hash_owners(graph.num_nodes, ranks))
    cost = sample_traffic([[sizes], *([] for _ in range(ranks - 1))], 0, hops=2)
    expected = expected_sample_bytes(sample.num_sampled_nodes[:2], sample.num_sampled_edges, ranks=ranks)
    assert cost["counts"].sent == expected["counts"]
    assert cost["nodes"].sent == pytest.approx(expected["nodes"], rel=0.02)
    assert cost["neighbors"].received == pytest.approx(expected["neighbors"], rel=0.02)
