"""AUC and average precision of edges against pairs that are none."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.sample import KnownEdges
from headrace.store import TrainedArray
from headrace.train.inference.pairs import draw_pairs, tell_apart
from headrace.train.measure import auc, average_precision


def edges_of(pairs):
    return torch.tensor([[a, 0, b] for a, b in pairs], dtype=torch.long).reshape(-1, 3)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=25))
def test_figures_are_counted_by_hand(examples):
    scores, true = torch.tensor([float(s) for s, _ in examples]), torch.tensor([t for _, t in examples])
    trues, others = scores[true].tolist(), scores[~true].tolist()
    wins = [(a > b) + 0.5 * (a == b) for a in trues for b in others]
    area = auc(scores, true)
    assert area is None if not wins else abs(area - sum(wins) / len(wins)) < 1e-12
    precision = average_precision(scores, true)
    if trues:
        shares = [sum(b >= a for b in trues) / sum(b >= a for b in scores.tolist()) for a in trues]
        assert abs(precision - sum(shares) / len(shares)) < 1e-12
    else:
        assert precision is None


def test_known_edges_are_told():
    known = KnownEdges(edges_of([(0, 1), (0, 2), (3, 2)]), num_nodes=4, num_relations=1)
    assert known.has(edges_of([(0, 1), (1, 0), (3, 2), (3, 3), (0, 2)])).tolist() == [True, False, True, False, True]
    assert known.has(edges_of([])).tolist() == []


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), nodes=st.integers(2, 12))
def test_pairs_are_two_nodes_that_are_no_edge(seed, nodes):
    graph = torch.rand(nodes, nodes, generator=torch.Generator().manual_seed(seed)) < 0.4
    edges = edges_of(graph.nonzero().tolist())
    known = KnownEdges(edges, num_nodes=nodes, num_relations=1)
    pairs = draw_pairs(30, nodes, known, seed=seed)
    assert torch.equal(pairs, draw_pairs(30, nodes, known, seed=seed))
    assert not graph[pairs[:, 0], pairs[:, 2]].any()
    assert bool((pairs[:, 0] != pairs[:, 2]).all())
    free = ~graph
    free.fill_diagonal_(False)
    assert len(pairs) == (30 if free.any() else 0)


def test_a_complete_graph_has_no_pairs_to_compare_with():
    edges = edges_of([(a, b) for a in range(4) for b in range(4)])
    known = KnownEdges(edges, num_nodes=4, num_relations=1)
    assert tell_apart(hr.nn.Dot(2), TrainedArray(torch.rand(4, 2), torch.zeros(4, 0)), edges, known=known) == {}


def test_link_prediction_on_a_plain_graph_gives_both_and_a_knowledge_graph_neither():
    data = hr.generate.community(nodes=300, edges=6000, classes=3, features=4)
    options = hr.train.LinkOptions(dim=16, epochs=5, batch_size=200, negatives=50)
    test = hr.train.link(data, options).test
    assert 0.6 < test["auc"] < 1
    assert 0.6 < test["ap"] < 1
    train = torch.randint(5, (40, 3)) % torch.tensor([5, 2, 5])
    labeled = hr.Dataset(data.graph, extra={"train": train, "valid": train[:5], "test": train[:5]})
    assert "auc" not in hr.train.link(labeled, options).test
