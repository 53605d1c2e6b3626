"""What a server holds of a graph, against plain loops over all edges."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from elastic_servers import model_of, part_with, train
from headrace.cluster import cut
from headrace.cluster.elastic import Neighborhood
from headrace.cluster.elastic.neighborhood import bytes_per_epoch
from headrace.store import TableOwners, hash_owners
from rank_threads import ThreadExchange, on_every_rank


def neighborhoods(data, owners, intervals):
    """Of all servers, which are threads."""

    def work(ranks):
        return Neighborhood(part_with(data, owners, ranks.rank), intervals=intervals, exchange=ThreadExchange(ranks))

    built = on_every_rank(owners.ranks, work)
    for one in built:
        if isinstance(one, Exception):
            raise one
    return built


@st.composite
def cases(draw):
    """A graph, its owners and a number of intervals: isolated nodes, loops, repeated edges, servers without a node."""
    nodes, servers = draw(st.integers(1, 14)), draw(st.integers(2, 3))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=40))
    if draw(st.booleans()) and nodes >= servers:
        owners = hash_owners(nodes, servers, seed=draw(st.integers(0, 5)))
    else:
        owners = TableOwners(torch.tensor(draw(st.lists(st.integers(0, servers - 1), min_size=nodes, max_size=nodes))), servers)
    return dataset(edges, nodes), owners, draw(st.integers(1, 6))


def dataset(edges, nodes):
    source, target = torch.tensor(edges, dtype=torch.int64).view(-1, 2).T
    x, y = torch.arange(nodes * 13.0).view(nodes, 13), torch.arange(nodes) % 4
    return hr.Dataset(hr.Graph.from_edges(source, target, nodes), x=x, y=y, splits={"train": torch.arange(nodes)})


def edges_of(graph):
    """(source, target) of every edge, in the order of rows."""
    targets = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.indptr.diff())
    return list(zip(graph.indices.tolist(), targets.tolist(), strict=True))


def read_ids(at, reading, owners):
    """The node behind each row that is here: own ones, then ghosts by server."""
    ghosts = [owners.ids_of(server)[asked] for server, asked in enumerate(reading.asked)]
    return torch.cat([at.ids, *ghosts]).tolist()


@settings(max_examples=60, deadline=None)
@given(cases())
def test_rows_are_those_of_the_graph_and_of_its_reverse(case):
    data, owners, intervals = case
    edges = edges_of(data.graph)
    for at in neighborhoods(data, owners, intervals):
        for reading, of in ((at.forward, lambda s, t: (t, s)), (at.backward, lambda s, t: (s, t))):
            ids = read_ids(at, reading, owners)
            assert reading.num_src == len(ids) == len(set(ids))
            for row, node in enumerate(at.ids.tolist()):
                entries = reading.indices[int(reading.indptr[row]) : int(reading.indptr[row + 1])].tolist()
                wanted = [other for own, other in (of(*edge) for edge in edges) if own == node]
                assert [ids[entry] for entry in entries] == wanted
            own = set(at.ids.tolist())
            assert set(ids) - own == {other for mine, other in (of(*edge) for edge in edges) if mine in own} - own
        degrees = Counter(target for source, target in edges if source != target)  # GCN counts loops apart
        assert at.degree.tolist() == [degrees[node] for node in read_ids(at, at.forward, owners)]


@settings(max_examples=60, deadline=None)
@given(cases())
def test_what_a_server_tells_is_what_another_one_places(case):
    data, owners, intervals = case
    servers = neighborhoods(data, owners, intervals)
    for at in servers:
        for name in ("forward", "backward"):
            placed = []
            for interval in range(at.num_intervals):
                teller = servers[at.server_of(interval)]
                assert interval in teller.own_intervals
                assert at.range_of(interval) == teller.range_of(interval)
                if teller is at:
                    continue
                told = teller.told(getattr(teller, name), interval, at.server)
                places = at.places(getattr(at, name), interval)
                ids = torch.tensor(read_ids(at, getattr(at, name), owners))
                assert torch.equal(ids[places], teller.ids[told])
                placed += places.tolist()
            assert sorted(placed) == list(range(at.num_own, getattr(at, name).num_src))  # every ghost comes from one interval


@settings(max_examples=60, deadline=None)
@given(cases())
def test_an_interval_reads_those_of_its_neighbors_and_itself(case):
    data, owners, intervals = case
    servers = neighborhoods(data, owners, intervals)
    interval_of = {}
    for at in servers:
        covered = []
        for interval in at.own_intervals:
            begin, end = at.range_of(interval)
            covered += range(begin, end)
            interval_of |= dict.fromkeys(at.ids[begin:end].tolist(), interval)
        assert covered == list(range(at.num_own))
        assert len(at.own_intervals) == intervals
        assert at.num_intervals == intervals * owners.ranks
    edges = edges_of(data.graph)
    for at in servers:
        for reading, of in ((at.forward, lambda s, t: (t, s)), (at.backward, lambda s, t: (s, t))):
            wanted = {interval: {interval} for interval in at.own_intervals}
            for edge in edges:
                own, other = of(*edge)
                if interval_of[own] in wanted:
                    wanted[interval_of[own]].add(interval_of[other])
            assert at.reads(reading) == wanted


@settings(max_examples=30, deadline=None)
@given(cases())
def test_bytes_of_an_epoch_are_those_of_distinct_boundary_rows(case):
    data, owners, intervals = case
    owner = owners.locate(torch.arange(data.num_nodes))[0].tolist()
    crossing = {(s, owner[t]) for s, t in edges_of(data.graph) if owner[s] != owner[t]}
    back = {(t, owner[s]) for s, t in edges_of(data.graph) if owner[s] != owner[t]}
    for at in neighborhoods(data, owners, intervals):
        rows = sum(owner[node] == at.server for node, _ in [*crossing, *back])
        assert bytes_per_epoch(at, [8, 16], 4) == rows * 24 * 4


def test_intervals_have_about_equal_work():
    data = hr.generate.community(nodes=2000, edges=20_000, classes=4, features=13, seed=1)
    at = Neighborhood(part_with(data, hash_owners(2000, 1), 0), intervals=8, exchange=None)
    work = []
    for interval in at.own_intervals:
        begin, end = at.range_of(interval)
        work.append(end - begin + sum(int(r.indptr[end] - r.indptr[begin]) for r in (at.forward, at.backward)))
    row = 1 + at.forward.indptr.diff() + at.backward.indptr.diff()  # rows are not cut
    assert max(work) - min(work) <= 2 * int(row.max())
    assert max(work) < 1.25 * min(work)


def test_on_one_server_neighbors_that_are_near_are_in_near_intervals():
    nodes = torch.arange(320)
    graph = hr.Graph.from_edges(nodes[:-1], nodes[1:])
    data = hr.Dataset(graph, x=torch.zeros(320, 2), y=torch.zeros(320, dtype=torch.int64), splits={"train": nodes})
    at = Neighborhood(cut(data, 0, parts=1), intervals=32, exchange=None)
    assert at.reads(at.forward) == {i: {max(i - 1, 0), i} for i in range(32)}
    assert at.reads(at.backward) == {i: {i, min(i + 1, 31)} for i in range(32)}


def test_the_exchange_of_an_epoch_counts_the_bytes_of_the_formula():
    """Forward and back in training; a validation sends forward rows alone."""
    data = hr.generate.community(nodes=200, edges=900, classes=4, features=13, seed=1)
    data = hr.Dataset(data.graph, x=data.x.double(), y=data.y, splits=data.splits)
    for validate in (False, True):
        _, done = train(model_of("sage", layers=3), data, servers=3, intervals=4, validate=validate)
        for one in done:
            forward = sum(map(len, one.at.forward.told)) * (8 + 8) * 8
            assert one.traffic["rows"].sent == bytes_per_epoch(one.at, [8, 8], 8) + validate * forward


def test_intervals_must_be_at_least_one():
    data = dataset([(0, 1)], 2)
    with pytest.raises(ValueError, match="intervals must be at least 1, not 0"):
        Neighborhood(part_with(data, hash_owners(2, 1), 0), intervals=0, exchange=None)
