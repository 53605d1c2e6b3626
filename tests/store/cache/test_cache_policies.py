"""Which rows a cache keeps: the native policies do what their plain Python versions do, access by access."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from cache_references import REFERENCES, belady_misses, fewest_misses
from headrace import _native
from headrace.sample import NeighborSampler

ONLINE = sorted(REFERENCES)


def zipf(nodes, count, seed, exponent=1.0):
    weight = 1 / np.arange(1, nodes + 1) ** exponent
    rng = np.random.default_rng(seed)
    return rng.permutation(nodes)[rng.choice(nodes, size=count, p=weight / weight.sum())]


def access(cache, ids):
    """One batch from begin to end: (row of the access per id, evicted nodes)."""
    got = cache.access(np.asarray(ids, dtype=np.int64))
    cache.finish(got, True)
    return got


def native_batch(cache, ids):
    """(hits per id, evicted) as the references tell them."""
    got = access(cache, ids)
    seen, hits = set(), []
    for source in got.source.tolist():
        row = -1 - source
        hits.append(source >= 0 or (row in seen and bool(got.fill[row] >= 0)))
        seen.add(row)
    assert got.hits == sum(hits)
    return hits, got.evicted.tolist()


def compare(policy, batches, nodes, capacity):
    cache, reference = _native.OnlineCache(policy, nodes, capacity), REFERENCES[policy](capacity)
    for number, batch in enumerate(batches):
        assert native_batch(cache, batch) == reference.batch(list(map(int, batch))), f"batch {number}"
        assert cache.rows_held == len(reference)


def distinct(trace, size):
    return [np.unique(trace[i : i + size]) for i in range(0, len(trace), size)]


@pytest.mark.parametrize("policy", ONLINE)
@pytest.mark.parametrize("capacity", [1, 2, 9, 10, 40, 200])
@pytest.mark.parametrize("size", [1, 7, 60])
def test_hits_and_evictions_are_the_references(policy, capacity, size):
    for trace in (zipf(150, 1500, 1), np.random.default_rng(2).integers(0, 60, 700), np.tile(np.arange(45), 8)):
        compare(policy, [trace[i : i + size] for i in range(0, len(trace), size)], 150, capacity)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(ONLINE), st.integers(0, 12), st.lists(st.lists(st.integers(0, 19), max_size=14), min_size=1, max_size=25))
def test_any_trace_gives_what_the_reference_gives(policy, capacity, batches):
    if capacity:
        compare(policy, batches, 20, capacity)
    else:
        cache = _native.OnlineCache(policy, 20, 0)
        assert all(access(cache, batch).hits == 0 for batch in batches)


@pytest.mark.parametrize("policy", [*ONLINE, "planned"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_slots_and_fetches_lead_to_the_right_nodes(policy, data):
    """Whatever is in flight or fails: a slot that is read holds its node, one that is held is not written."""
    capacity = data.draw(st.integers(0, 6))
    batches = data.draw(st.lists(st.lists(st.integers(0, 11), max_size=9), min_size=1, max_size=15))
    cache = _native.PlannedCache(12, capacity, 20) if policy == "planned" else _native.OnlineCache(policy, 12, capacity)
    if policy == "planned":
        for batch in batches:
            cache.announce(np.array(batch, dtype=np.int64))
    rows = np.full(max(capacity, 1), -1)
    flying = []

    def land(index, complete):
        batch, got = flying.pop(index)
        read = [int(rows[s]) if s >= 0 else int(got.fetch[-1 - s]) for s in got.source]
        assert read == batch
        if complete:
            rows[got.fill[got.fill >= 0]] = got.fetch[got.fill >= 0]
        cache.finish(got, complete)

    for batch in batches:
        got = cache.access(np.array(batch, dtype=np.int64))
        assert len(set(got.fetch.tolist())) == len(got.fetch)
        kept = got.fill[got.fill >= 0].tolist()
        assert len(set(kept)) == len(kept)
        flying.append((batch, got))
        while flying and data.draw(st.booleans()):
            land(data.draw(st.integers(0, len(flying) - 1)), data.draw(st.booleans()))
    while flying:
        land(0, True)
    found = cache.find(np.arange(12))
    assert len(found.fetch) == cache.rows_held <= capacity
    assert rows[found.fill].tolist() == found.fetch.tolist()


@pytest.mark.parametrize("policy", ONLINE)
def test_what_is_there_is_a_hit_wherever_in_the_batch_it_comes(policy):
    cache = _native.OnlineCache(policy, 100, 4)
    access(cache, [0, 1, 2, 3])
    got = access(cache, [*range(10, 30), 3, 2, 1, 0])  # more misses than there is room
    assert got.hits == 4
    assert got.evicted.tolist() == []
    assert got.fetch.tolist() == list(range(10, 30))
    got = access(cache, [50, 51, 2, 52])
    assert got.hits == 1
    assert sorted(got.evicted.tolist()) == [0, 1, 3]


@pytest.mark.parametrize("policy", ONLINE)
def test_what_another_batch_is_fetching_is_fetched_in_order_with_the_rest(policy):
    cache = _native.OnlineCache(policy, 100, 4)
    first = cache.access(np.array([5, 6]))
    second = cache.access(np.array([7, 6, 8, 5]))
    assert second.fetch.tolist() == [7, 6, 8, 5]  # all of them, so the store may write them where they belong
    assert second.source.tolist() == [-1, -2, -3, -4]
    cache.finish(first, True)
    cache.finish(second, True)


def test_sieve_keeps_what_is_used_again_through_a_scan():
    cache = _native.OnlineCache("sieve", 1000, 10)
    for _ in range(3):
        for node in range(5):
            access(cache, [node])
    for node in range(100, 400):
        access(cache, [node])
        access(cache, [node % 5])
    assert access(cache, list(range(5))).hits == 5


def test_s3fifo_brings_a_ghost_back_into_the_main_queue():
    cache = _native.OnlineCache("s3fifo", 100, 10)
    for node in [*range(10), 10]:
        access(cache, [node])
    assert access(cache, [0]).hits == 0  # it left the small queue for 10, and is a ghost
    for node in range(20, 40):
        access(cache, [node])
    assert access(cache, [0]).hits == 1  # a scan of 20 does not get it out of the main queue


def run_planned(batches, nodes, capacity, lookahead):
    cache, coming, misses = _native.PlannedCache(nodes, capacity, lookahead), iter(batches), []
    for batch in batches:
        while cache.announced <= lookahead and (following := next(coming, None)) is not None:
            cache.announce(np.asarray(following, dtype=np.int64))
        misses.append(len(access(cache, batch).fetch))
        assert cache.rows_held <= capacity
    return misses


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 6),
    st.lists(st.lists(st.integers(0, 9), max_size=7), min_size=1, max_size=20),
    st.sampled_from([1, 2, 3, 7, 100]),
)
def test_planned_is_beladys_rule_over_its_window(capacity, batches, lookahead):
    misses = run_planned(batches, 10, capacity, lookahead)
    if lookahead >= len(batches):
        assert misses == belady_misses(batches, capacity)
    else:  # which of several rows without a use in sight goes is open
        assert sum(misses) >= sum(belady_misses(batches, capacity))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=7))
def test_planned_over_the_whole_trace_misses_as_little_as_is_possible(capacity, batches):
    assert sum(run_planned(batches, 5, capacity, len(batches))) == fewest_misses(batches, capacity)


def sampled_batches():
    graph = hr.generate.community(nodes=4000, edges=60_000, classes=4, features=0, seed=3).graph
    sampler = NeighborSampler(graph, [5, 3], threads=1)
    seeds = torch.randperm(4000, generator=torch.Generator().manual_seed(0))
    return [sampler.sample(seeds[i * 40 : (i + 1) * 40], 0, i).nodes.long().numpy().copy() for i in range(80)]


@pytest.mark.parametrize("trace", ["zipf", "uniform", "sampled"])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.4])
def test_no_policy_hits_more_often_than_planned(trace, share):
    if trace == "sampled":
        nodes, batches = 4000, sampled_batches()
    else:
        nodes, ids = 500, zipf(500, 6000, 4) if trace == "zipf" else np.random.default_rng(4).integers(0, 500, 6000)
        batches = distinct(ids, 50)
    capacity = int(share * nodes)
    hits = {}
    for policy in ONLINE:
        cache = _native.OnlineCache(policy, nodes, capacity)
        hits[policy] = sum(access(cache, batch).hits for batch in batches)
    total = sum(map(len, batches))
    best = total - sum(run_planned(batches, nodes, capacity, len(batches)))
    ahead = total - sum(run_planned(batches, nodes, capacity, 16))
    assert best == total - sum(belady_misses([b.tolist() for b in batches], capacity))
    assert max(hits.values()) <= ahead <= best
    assert best > 0


def test_a_new_plan_leaves_the_rows_and_forgets_the_old_batches():
    cache = _native.PlannedCache(10, 3, 8)
    for batch in ([0, 1, 2], [0, 1, 2], [5, 6, 7]):
        cache.announce(np.array(batch))
    assert len(access(cache, [0, 1, 2]).fetch) == 3
    cache.restart()
    assert cache.announced == 0
    for batch in ([2, 3], [3, 0], [0, 1, 2]):
        cache.announce(np.array(batch))
    assert [len(access(cache, b).fetch) for b in ([2, 3], [3, 0], [0, 1, 2])] == [1, 0, 1]


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match="policy must be"):
        _native.OnlineCache("fifo", 10, 2)
    with pytest.raises(ValueError, match="capacity must be"):
        _native.OnlineCache("lru", 10, -1)
    cache = _native.OnlineCache("lru", 10, 2)
    for bad in (-1, 10):
        with pytest.raises(ValueError, match="out of range"):
            cache.access(np.array([1, bad]))
    assert cache.rows_held == 0
    with pytest.raises(ValueError, match="no row in this slot"):
        cache.forget(np.array([0], dtype=np.int32))
    planned = _native.PlannedCache(10, 2, 1)
    with pytest.raises(ValueError, match="no batch is announced"):
        planned.access(np.array([1]))
    planned.announce(np.array([1]))
    planned.announce(np.array([2]))
    with pytest.raises(ValueError, match="the window is full"):
        planned.announce(np.array([3]))
    with pytest.raises(ValueError, match="not those of the next"):
        planned.access(np.array([2]))
