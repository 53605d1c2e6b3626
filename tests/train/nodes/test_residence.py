"""Which partitions are resident when, the graph between them, and what fits into memory: pure functions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.train.nodes.storage.memory import BatchSize, cache_budget, slot_budget
from headrace.train.nodes.storage.residence import Residence
from headrace.train.nodes.storage.resident_data import resident_graph


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_partitions_of_every_epoch_have_slots_of_their_own(draw):
    partitions = draw.draw(st.integers(1, 12))
    resident = draw.draw(st.integers(1, partitions))
    pinned = draw.draw(st.integers(0, resident))
    plan = Residence(partitions, pinned, resident, draw.draw(st.integers(0, 3)), draw.draw(st.integers(0, 5)))
    before: dict[int, int] = {}
    for epoch in range(4):
        places = plan.placed(epoch)
        assert len(places) == resident == len(set(places.values()))
        assert set(range(pinned)) <= set(places) <= set(range(partitions))
        assert all(places[partition] == partition for partition in range(pinned))  # in the first slots, always
        assert all(0 <= slot < plan.slots for slot in places.values())
        assert all(places[p] == slot for p, slot in before.items() if p in places)  # who stays does not move
        if epoch:
            assert plan.following(before, epoch) == places
        before = places


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 7), st.integers(0, 120), st.integers(0, 10**6))
def test_a_resident_graph_has_the_edges_between_resident_nodes_and_no_others(nodes, size, edges, seed):
    draw = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(0, nodes, (2, edges), generator=draw)
    graph = hr.Graph.from_edges(src, dst, nodes)
    partitions = -(-nodes // size)
    chosen = torch.randperm(partitions, generator=draw)[: int(torch.randint(0, partitions + 1, (), generator=draw))].tolist()
    slots = len(chosen) + 2
    places = dict(zip(chosen, torch.randperm(slots, generator=draw).tolist(), strict=False))
    found = resident_graph(graph, places, size=size, slots=slots)
    assert found.num_nodes == slots * size
    row = {v: places[v // size] * size + v % size for v in range(nodes) if v // size in places}
    wanted: dict[int, list[int]] = {}
    for v in range(nodes):
        kept = [row[int(u)] for u in graph.neighbors(v) if int(u) in row] if v in row else []
        wanted |= {row[v]: kept} if v in row else {}
    for r in range(slots * size):
        assert found.neighbors(r).tolist() == wanted.get(r, [])


def test_what_fits_is_counted():
    batch = BatchSize(rows=1000, row_bytes=400, sample_bytes=20_000)
    found = cache_budget(10_000_000, batch, nodes=50_000, staleness=2)
    assert found.cache + 5 * batch.bytes + 12 * 50_000 + (found.lookahead + 6) * 20_000 == 10_000_000
    wanted = {"partitions": 8, "pinned": 2}
    assert slot_budget(10_000_000, batch, partition_bytes=10_000, **wanted).resident == 8
    assert slot_budget(10_000_000, batch, partition_bytes=10_000, **wanted).spare == 0
    exactly = 3 * 100_000 + 8 * 20_000
    assert slot_budget(exactly, batch, partition_bytes=100_000, **wanted).resident == 3
    with pytest.raises(ValueError, match="3 of 8 partitions"):
        slot_budget(exactly - 1, batch, partition_bytes=100_000, **wanted)
