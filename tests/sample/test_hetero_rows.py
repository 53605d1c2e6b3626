"""Typed sampling by weight, by time and in trees: against a search through all edges, and against the sampler of one type."""

from dataclasses import replace

import pytest
import torch

import headrace as hr
from headrace.sample import HeteroSampler, NeighborSampler
from headrace.sample.hops import numbered

LIKES, SAYS, OF = ("user", "likes", "item"), ("item", "rev", "user"), ("tag", "of", "item")
COUNTS = {"user": 40, "item": 25, "tag": 60, "lone": 2}


@pytest.fixture(scope="module")
def edges():
    draw = torch.Generator().manual_seed(2)
    return {
        t: torch.stack([torch.randint(0, COUNTS[kind], (300,), generator=draw) for kind in (t[0], t[2])]) for t in (LIKES, SAYS, OF)
    }


@pytest.fixture(scope="module")
def graph(edges):
    """Edges `LIKES` and `SAYS` have times, `LIKES` and `OF` weights, of which a third is 0."""
    plain = hr.HeteroGraph.from_edges(edges, num_nodes=COUNTS)
    draw = torch.Generator().manual_seed(3)
    times = {t: torch.randint(0, 50, (300,), generator=draw) for t in (LIKES, SAYS)}
    weights = {t: torch.arange(300) % 3.0 for t in (LIKES, OF)}
    beside = {
        t: replace(r, **{name: values[t][r.edge_id] for name, values in (("time", times), ("weight", weights)) if t in values})
        for t, r in plain.relations.items()
    }
    return hr.HeteroGraph(COUNTS, beside), times, weights


def check(sample, edges, *, fanouts, trees, is_allowed):
    """Every row has as many of the allowed edges as the fanout says, from nodes of its own tree, and hops follow one another."""
    for edge_type, ends in edges.items():
        source, _, target = edge_type
        rows, first = len(sample.indptr[edge_type]) - 1, 0
        assert rows == sum(sample.num_sampled_nodes[target][:-1])
        local = sample.edge_index(edge_type)
        ids = sample.edge_id[edge_type]
        for side, kind in ((0, source), (1, target)):
            assert torch.equal(sample.nodes[kind][local[side]], ends[side, ids])
        if trees:
            assert torch.equal(sample.tree[source][local[0]], sample.tree[target][local[1]])
        for hop, added in enumerate(sample.num_sampled_nodes[target][:-1]):
            for row in range(first, first + added):
                begin, end = sample.indptr[edge_type][row : row + 2].tolist()
                tree = int(sample.tree[target][row]) if trees else 0
                into = (ends[1] == sample.nodes[target][row]).nonzero().flatten().tolist()
                allowed = [edge for edge in into if is_allowed(edge_type, edge, tree)]
                drawn = ids[begin:end].tolist()
                assert set(drawn) <= set(allowed)
                assert len(drawn) == len(set(drawn)) == (len(allowed) if fanouts[hop] < 0 else min(fanouts[hop], len(allowed)))
            first += added
    for kind, nodes in sample.nodes.items():  # a node stands once in a tree, but for seeds
        beyond = sample.num_sampled_nodes[kind][0]
        pairs = list(zip(nodes.tolist(), sample.tree[kind].tolist() if trees else nodes.tolist(), strict=True))
        assert len(set(pairs[beyond:])) == len(pairs[beyond:])
        assert not set(pairs[beyond:]) & set(pairs[:beyond])


def test_keys_are_numbered_in_order_of_first_appearance():
    draw = torch.Generator().manual_seed(6)
    for known_count, count in ((0, 0), (0, 9), (6, 0), (6, 20), (9, 40)):
        known, keys = (torch.randint(0, 15, (n,), generator=draw) for n in (known_count, count))
        place, fresh = {}, []
        for i, key in enumerate(known.tolist()):
            place.setdefault(key, i)
        following = known_count
        for key in keys.tolist():
            fresh.append(key not in place)
            place.setdefault(key, following)
            following += fresh[-1]
        local, new = numbered(known, keys)
        assert local.tolist() == [place[key] for key in keys.tolist()]
        assert new.tolist() == fresh


@pytest.mark.parametrize("fanouts", [[3, 2], [-1, 4]])
def test_trees_are_disjoint(graph, edges, fanouts):
    sample = HeteroSampler(graph[0], fanouts, disjoint=True, seed=5).sample({"item": [3, 3, 7], "user": [1]}, edge_ids=True)
    check(sample, edges, fanouts=fanouts, trees=True, is_allowed=lambda *_: True)
    assert sample.tree["user"][:1].tolist() == [0]  # counted through the types in the graph's order
    assert sample.tree["item"][:3].tolist() == [1, 2, 3]


@pytest.mark.parametrize("inclusive", [False, True])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_only_the_past_is_sampled(graph, edges, strategy, inclusive):
    typed, times, _ = graph
    sampler = HeteroSampler(typed, [4, 3], temporal=strategy, inclusive=inclusive, seed=1)
    seed_times = [10, 25, 49, 30]

    def is_past(edge_type, edge, tree):
        return edge_type not in times or int(times[edge_type][edge]) < seed_times[tree] + inclusive

    sample = sampler.sample({"item": [3, 3, 7, 9]}, time={"item": seed_times}, edge_ids=True)
    check(sample, edges, fanouts=[4, 3], trees=True, is_allowed=is_past)
    if strategy == "last":
        begin, end = sample.indptr[LIKES][2:4].tolist()
        taken = times[LIKES][sample.edge_id[LIKES][begin:end]].sort()[0]
        into = times[LIKES][(edges[LIKES][1] == 7)].sort()[0]
        assert torch.equal(taken, into[into < 49 + inclusive][-4:])


def test_edges_of_weight_0_are_never_drawn(graph, edges):
    typed, _, weights = graph
    sample = HeteroSampler(typed, [4, 3], weighted=True, seed=1).sample({"item": torch.arange(25)}, edge_ids=True)

    def has_weight(edge_type, edge, _):
        return edge_type not in weights or float(weights[edge_type][edge]) > 0

    check(sample, edges, fanouts=[4, 3], trees=False, is_allowed=has_weight)


def test_draws_are_by_weight(graph):
    """Of weights 1 and 2, two of one and one of the other, the heavy one is drawn as often as its share says."""
    relation = hr.HeteroGraph.from_edges({("a", "to", "b"): ([0, 1, 2], [0, 0, 0])}).relations["a", "to", "b"]
    typed = hr.HeteroGraph({"a": 3, "b": 1}, {("a", "to", "b"): replace(relation, weight=torch.tensor([1.0, 1.0, 2.0]))})
    sampler = HeteroSampler(typed, [1], weighted=True, seed=1)
    heavy = sum(int(sampler.sample({"b": [0]}, 0, batch).nodes["a"]) == 2 for batch in range(200))
    assert 75 < heavy < 125


def test_a_sample_depends_on_seed_epoch_and_batch_alone(graph):
    def fingerprint(sampler, *numbers, threads):
        sample = sampler.sample({"item": [3, 9]}, *numbers, time={"item": [40, 45]}, edge_ids=True, threads=threads)
        return [ids.tolist() for ids in (*sample.nodes.values(), *sample.edge_id.values())]

    sampler = HeteroSampler(graph[0], [3, 3], temporal="uniform", seed=1)
    first = fingerprint(sampler, 0, 0, threads=1)
    assert fingerprint(HeteroSampler(graph[0], [3, 3], temporal="uniform", seed=1), 0, 0, threads=2) == first
    others = [fingerprint(sampler, 0, 1, threads=1), fingerprint(sampler, 1, 0, threads=1)]
    others.append(fingerprint(HeteroSampler(graph[0], [3, 3], temporal="uniform", seed=2), 0, 0, threads=1))
    assert all(other != first for other in others)


def test_with_one_type_whole_rows_are_those_of_the_sampler_of_one_type():
    draw = torch.Generator().manual_seed(4)
    src, dst, time = (torch.randint(0, n, (400,), generator=draw) for n in (50, 50, 90))
    one = hr.Graph.from_edges(src, dst, 50, time=time, edge_id=True).sorted_by_time()
    relation = hr.HeteroGraph.from_edges({("v", "to", "v"): (src, dst)}, num_nodes={"v": 50}).relations["v", "to", "v"]
    typed = hr.HeteroGraph({"v": 50}, {("v", "to", "v"): replace(relation, time=time[relation.edge_id])})
    seeds, times = torch.tensor([4, 4, 20]), torch.tensor([80, 20, 60])
    expected = NeighborSampler(one, [-1, -1], temporal="uniform").sample(seeds, time=times, edge_ids=True)
    sample = HeteroSampler(typed, [-1, -1], temporal="uniform").sample({"v": seeds}, time={"v": times}, edge_ids=True)
    assert torch.equal(sample.nodes["v"], expected.nodes.long())
    assert torch.equal(sample.tree["v"], expected.tree.long())
    assert torch.equal(sample.indptr["v", "to", "v"], expected.indptr)
    assert torch.equal(sample.indices["v", "to", "v"], expected.indices)
    assert torch.equal(sample.edge_id["v", "to", "v"].long(), expected.edge_id.long())


def test_what_does_not_fit_is_refused(graph, edges):
    plain = hr.HeteroGraph.from_edges(edges, num_nodes=COUNTS)
    for options, message in (({"weighted": True}, "no edge type of this graph has weights"), ({"temporal": "last"}, "needs times")):
        with pytest.raises(ValueError, match=message):
            HeteroSampler(plain, [2], **options)
    sampler = HeteroSampler(graph[0], [2], temporal="uniform")
    for time, message in ((None, "needs the time of every seed"), ({"item": [1, 2]}, "2 entries for 1 seeds")):
        with pytest.raises(ValueError, match=message):
            sampler.sample({"item": [3]}, time=time)
    with pytest.raises(ValueError, match="time is for temporal sampling"):
        HeteroSampler(plain, [2]).sample({"item": [3]}, time={"item": [1]})
