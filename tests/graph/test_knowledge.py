"""Generated knowledge graphs: of the size asked for, the same for any number of threads, skewed, and with something to learn."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.graph import knowledge as module
from headrace.graph.known.named import named
from headrace.train import LinkOptions, link
from headrace.train.links.data import LinkData


def all_of(data):
    return torch.cat([data.extra[name] for name in ("train", "valid", "test")])


@given(
    nodes=st.integers(1, 300),
    edges=st.integers(0, 500),
    relations=st.integers(1, 40),
    structure=st.floats(0, 1),
    exponent=st.floats(2.05, 9),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=40, deadline=None)
def test_triples_are_as_many_as_asked_for_and_within_range(nodes, edges, relations, structure, exponent, seed):
    data = hr.generate.knowledge(nodes, edges, relations, structure=structure, exponent=exponent, seed=seed, threads=1)
    triples = all_of(data)
    assert triples.dtype == torch.int32
    assert triples.shape == (edges, 3)
    assert data.num_nodes == nodes
    if edges:
        assert bool((triples >= 0).all())
        assert bool((triples < torch.tensor([nodes, relations, nodes])).all())
    assert data.info["num_relations"] == relations


def test_threads_change_nothing_and_seeds_do(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 1000)
    one, many = (all_of(hr.generate.knowledge(50_000, 7500, 9, seed=3, threads=threads)) for threads in (1, 5))
    assert torch.equal(one, many)
    assert not torch.equal(one, all_of(hr.generate.knowledge(50_000, 7500, 9, seed=4, threads=1)))
    assert len(one.unique(dim=0)) > 7000  # no chunk repeats another


def test_splits_are_views_of_one_array():
    data = hr.generate.knowledge(100, 1000, 3, splits=(0.8, 0.15, 0.05))
    sizes = [len(data.extra[name]) for name in ("train", "valid", "test")]
    assert sizes == [800, 150, 50]
    edges = LinkData.of(data)
    assert edges.train.data_ptr() == data.extra["train"].data_ptr()  # 338 M edges are not copied
    assert edges.num_relations == 3


def test_degrees_and_relations_follow_a_power_law():
    triples = all_of(hr.generate.knowledge(20_000, 400_000, 100, exponent=2.5, seed=1)).long()
    degree = torch.bincount(triples[:, 0], minlength=20_000).sort(descending=True).values
    assert degree[0] > 20 * degree.float().mean()
    assert degree[:2000].sum() > 0.4 * degree.sum()  # a tenth of the nodes
    counts = torch.bincount(triples[:, 1], minlength=100)
    assert counts[0] > 1.5 * counts[1] > 0
    assert bool((counts > 0).all())
    blocks = torch.bincount(triples[:, 0] // 1250, minlength=16).float()  # ids carry no locality
    assert blocks.max() < 1.25 * blocks.mean()


def test_relations_lead_from_community_to_community():
    data = hr.generate.knowledge(64, 6000, 4, communities=8, structure=1.0, seed=2)
    triples = data.extra["train"].long()
    led = {tuple(edge) for edge in triples.tolist()}
    assert len({(h, t) for h, r, t in led if r == 1}) <= 8 * 8 * 8  # of 64 * 64 pairs
    options = LinkOptions(decoder="complex", dim=16, epochs=8, batch_size=200, negatives=32, init=0.1, threads=1)
    assert link(data, options).test["mrr"] > 0.2  # chance is below 0.08


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nodes": 0}, "nodes must be from 1"),
        ({"nodes": 2**31}, "int32"),
        ({"edges": -1}, "edges must not be negative"),
        ({"relations": 0}, "relations must be from 1"),
        ({"communities": 11}, "communities must be from 1 to the number of nodes, 10"),
        ({"structure": 1.5}, "structure must be from 0 to 1"),
        ({"exponent": 2.0}, "exponent must be above 2"),
        ({"splits": (0.5, 0.1, 0.1)}, "add up to 1"),
        ({"seed": -1}, "seed must be from 0"),
    ],
)
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        hr.generate.knowledge(**{"nodes": 10, "edges": 20, "relations": 2, **wrong})


def test_a_spec_names_one():
    data = named("generate:knowledge?nodes=100&edges=2e3&relations=4&structure=0.5&seed=7")
    assert torch.equal(all_of(data), all_of(hr.generate.knowledge(100, 2000, 4, structure=0.5, seed=7)))
    with pytest.raises(ValueError, match="did you mean 'relations'"):
        named("generate:knowledge?nodes=100&edges=20&relation=4")
