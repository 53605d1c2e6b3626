"""Which edges link prediction trains on, and which it holds out."""

import itertools

import pytest
import torch

import headrace as hr
from headrace.train.links.data import LinkData


def timed(times: list[float]) -> hr.Dataset:
    count = len(times)
    return hr.Dataset(hr.Graph.from_edges(range(count), [(i + 1) % count for i in range(count)], time=torch.tensor(times)))


def test_latest_edges_are_held_out() -> None:
    times = torch.randperm(200, generator=torch.Generator().manual_seed(0)).double()
    data = timed(times.tolist())
    edges = LinkData.of(data, held_out=0.1)
    assert edges.held_out_by == "time"
    assert [len(edges.train), len(edges.val), len(edges.test)] == [160, 20, 20]
    assert sorted(times[edges.test[:, 0].long()].tolist()) == list(range(180, 200))
    assert sorted(times[edges.val[:, 0].long()].tolist()) == list(range(160, 180))


def test_edges_of_one_time_are_in_one_split() -> None:
    data = timed([0.0] * 50 + [1.0] * 30 + [2.0] * 20)
    edges = LinkData.of(data, held_out=0.05)
    assert [len(edges.train), len(edges.val), len(edges.test)] == [50, 30, 20]
    with pytest.raises(ValueError, match="about one time"):
        LinkData.of(timed([3.0] * 20), held_out=0.05)


def test_triples_without_splits_are_held_out_by_pairs() -> None:
    head, tail = torch.randint(0, 50, (2, 2000), generator=torch.Generator().manual_seed(1))
    relation = torch.arange(2000) % 7
    triples = torch.stack([head, relation, tail], dim=1).int()
    data = hr.Dataset(hr.Graph.from_edges(head, tail, 50), extra={"triples": triples})
    edges = LinkData.of(data, held_out=0.1)
    assert (edges.num_relations, edges.labeled, edges.held_out_by) == (7, True, "pairs")
    parts = [{(min(h, t), max(h, t)) for h, _, t in part.tolist()} for part in (edges.train, edges.val, edges.test)]
    assert len(edges.train) + len(edges.val) + len(edges.test) == 2000
    assert all(not a & b for a, b in itertools.combinations(parts, 2))
    again = LinkData.of(data, held_out=0.1)
    assert torch.equal(again.test, edges.test)
    timed_triples = LinkData.of(
        hr.Dataset(data.graph, extra={"triples": triples, "triples_time": torch.arange(2000)}), held_out=0.1
    )
    assert torch.equal(timed_triples.train, triples[:1600])
