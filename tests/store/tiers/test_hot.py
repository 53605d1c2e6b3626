"""Which rows are hot: estimates against counts, and counts against what comes."""

import pytest
import torch

import headrace as hr
from headrace.sample import NeighborSampler
from headrace.store import access_counts, access_probability, expected_hit_rate, hot_order


@pytest.fixture(scope="module")
def graph():
    return hr.generate.community(nodes=200, edges=3_000, classes=3, features=0, seed=1).graph


def test_degree_counts_how_often_a_node_is_a_neighbor():
    graph = hr.Graph.from_edges([3, 3, 3, 0, 0, 1], [0, 1, 2, 1, 2, 0], 5)
    assert hot_order(graph).tolist() == [3, 0, 1, 2, 4]


def test_a_graph_without_edges_is_in_order_of_ids():
    assert hot_order(hr.Graph.from_edges([], [], 4)).tolist() == [0, 1, 2, 3]


def frequency(graph, seeds, fanouts, batches):
    sampler = NeighborSampler(graph, fanouts, seed=5, threads=1)
    return access_counts((sampler.sample(seeds, 0, b).nodes for b in range(batches)), graph.num_nodes) / batches


@pytest.mark.parametrize("fanout", [1, 4, 1000, -1, 0])
def test_one_hop_is_exact(graph, fanout):
    seeds = torch.arange(0, 60, 3)
    found = access_probability(graph, seeds, [fanout])
    degrees, expected = graph.degrees(), torch.ones(graph.num_nodes, dtype=torch.float64)
    for v in seeds.tolist():  # by hand: 1 - prod (1 - min(1, k / deg))
        k = int(degrees[v]) if fanout == -1 else fanout
        for u in graph.neighbors(v).tolist():
            expected[u] *= 1 - min(1.0, k / int(degrees[v]))
    expected = 1 - expected
    expected[seeds] = 1
    assert torch.allclose(found, expected, atol=1e-12)
    assert torch.allclose(found.float(), frequency(graph, seeds, [fanout], 1_000), atol=0.08)


def test_several_hops_are_close_to_what_the_sampler_does(graph):
    seeds = torch.arange(10)
    found, counted = access_probability(graph, seeds, [3, 3]), frequency(graph, seeds, [3, 3], 1_000)
    assert float((found - counted).abs().mean()) < 0.03
    assert float((found - counted).abs().max()) < 0.15
    assert abs(float(found.sum() / counted.sum()) - 1) < 0.05


def test_a_batch_takes_a_share_of_the_seeds(graph):
    seeds = torch.arange(100)
    found = access_probability(graph, seeds, [2], batch_size=10)
    batches = [torch.randperm(100)[:10] for _ in range(1_000)]
    sampler = NeighborSampler(graph, [2], threads=1)
    counted = access_counts((sampler.sample(b, 0, i).nodes for i, b in enumerate(batches)), graph.num_nodes) / 1_000
    assert float((found - counted).abs().max()) < 0.08
    assert torch.equal(access_probability(graph, seeds, [2], batch_size=500), access_probability(graph, seeds, [2]))


def test_orders_by_probability_and_by_count_are_falling(graph):
    seeds = torch.arange(20)
    probability = access_probability(graph, seeds, [5, 5], batch_size=4)
    order = hot_order(graph, "probability", seeds=seeds, fanouts=[5, 5], batch_size=4)
    assert (probability[order].diff() <= 0).all()
    batches = [torch.tensor([4, 4, 9]), torch.tensor([9, 4], dtype=torch.int32), [7]]
    assert hot_order(graph, "profile", batches=batches)[:4].tolist() == [4, 9, 7, 0]
    assert torch.equal(hot_order(graph, "planned", batches=batches), hot_order(graph, "profile", batches=batches))


def test_a_plan_is_exact_and_no_other_order_hits_more(graph):
    def batches():
        loader = hr.loader.NeighborLoader(graph, [4, 2], torch.arange(120), batch_size=16, shuffle=True, seed=3)
        return [b.n_id for b in loader]

    counts = access_counts(batches(), graph.num_nodes)
    planned = hot_order(graph, "planned", batches=batches())
    hot = planned[:40]
    came = torch.cat(batches())
    assert expected_hit_rate(counts, planned, 0.2) == pytest.approx(float(torch.isin(came, hot).float().mean()))
    for other in (hot_order(graph), hot_order(graph, "probability", seeds=torch.arange(120), fanouts=[4, 2])):
        assert expected_hit_rate(counts, other, 0.2) <= expected_hit_rate(counts, planned, 0.2)


def test_expected_hit_rate_at_its_ends():
    counts, order = torch.tensor([5, 0, 5]), torch.tensor([0, 2, 1])
    assert [expected_hit_rate(counts, order, s) for s in (0.0, 1 / 3, 2 / 3, 1.0)] == [0, 0.5, 1, 1]
    assert expected_hit_rate(torch.zeros(3), order, 0.5) == 0
    with pytest.raises(ValueError, match="share must be from 0 to 1"):
        expected_hit_rate(counts, order, 20)


@pytest.mark.parametrize(
    ("keywords", "error", "complaint"),
    [
        ({"by": "luck"}, ValueError, "by must be 'degree', 'probability', 'profile' or 'planned', not 'luck'"),
        ({"by": "probability"}, ValueError, "needs seeds"),
        ({"by": "probability", "seeds": [0], "fanouts": []}, ValueError, "fanouts must be one number per hop"),
        ({"by": "probability", "seeds": [0], "fanouts": [-2]}, ValueError, "fanouts must be one number per hop"),
        ({"by": "probability", "seeds": [0], "fanouts": [1], "batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"by": "probability", "seeds": [200], "fanouts": [1]}, IndexError, "for 200 rows"),
        ({"by": "profile"}, ValueError, "needs batches"),
        ({"by": "planned", "batches": [[-1]]}, IndexError, "ids from -1"),
    ],
)
def test_bad_input_is_named(graph, keywords, error, complaint):
    with pytest.raises(error, match=complaint):
        hot_order(graph, **keywords)
