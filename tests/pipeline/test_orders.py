"""Orders of partitions: every one is replayed, and its loads are those of the papers' formulas."""

import json
from dataclasses import replace
from importlib.resources import files
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline import order_search, orders
from headrace.pipeline.orders import ORDERS, best, beta, beta_swaps, comet, fewest_swaps, from_swaps, replay

# Loads after the first fill: Marius, figures 6 and 7, and simulation.
TABLE = {
    (4, 2): {"beta": 5, "hilbert_symmetric": 5, "hilbert": 9, "row_major": 12},
    (8, 2): {"beta": 27, "hilbert_symmetric": 28, "hilbert": 51, "row_major": 60},
    (8, 4): {"beta": 9, "hilbert_symmetric": 10, "hilbert": 18, "row_major": 37},
    (16, 4): {"beta": 42, "hilbert_symmetric": 56, "hilbert": 102, "row_major": 205},
    (16, 8): {"beta": 17, "hilbert_symmetric": 20, "hilbert": 36, "row_major": 136},
    (32, 8): {"beta": 78, "hilbert_symmetric": 112, "hilbert": 204, "row_major": 792},
    (64, 16): {"beta": 150, "hilbert_symmetric": 224, "hilbert": 408, "row_major": 3120},
}


@pytest.mark.parametrize(("size", "name"), [(size, name) for size, row in TABLE.items() for name in row])
def test_loads_are_those_of_the_papers(size, name):
    assert replay(ORDERS[name](*size)) == TABLE[size][name]


def test_lower_bounds():
    assert [fewest_swaps(16, 8), fewest_swaps(32, 8), fewest_swaps(16, 4), fewest_swaps(4, 2)] == [14, 67, 38, 5]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 24), st.integers(2, 24))
def test_every_order_covers_all_buckets(partitions, capacity):
    capacity = min(capacity, partitions)
    for name, make in ORDERS.items():
        if name == "comet":
            continue
        order = make(partitions, capacity)
        swaps = replay(order)
        assert (order.partitions, order.capacity) == (partitions, capacity)
        if capacity > 1:
            assert swaps >= fewest_swaps(partitions, capacity)
    if capacity > 1:
        assert replay(beta(partitions, capacity)) == beta_swaps(partitions, capacity)
        assert best(partitions, capacity).swaps <= beta(partitions, capacity).swaps


# Loads of BETA and of what was searched for, and the lower bound.
SEARCHED = {
    (8, 3): (13, 14, 13),
    (8, 4): (8, 9, 8),
    (12, 3): (32, 34, 32),
    (12, 4): (20, 23, 20),
    (12, 6): (11, 13, 12),
    (16, 3): (59, 62, 61),
    (16, 4): (38, 42, 38),
    (16, 5): (28, 32, 30),
    (16, 6): (21, 25, 24),
    (16, 8): (14, 17, 16),
    (20, 4): (62, 67, 64),
    (20, 5): (45, 51, 48),
    (24, 4): (90, 97, 91),
    (24, 6): (53, 60, 59),
    (24, 8): (36, 43, 40),
    (24, 12): (20, 25, 24),
    (28, 7): (60, 69, 68),
    (32, 4): (164, 173, 166),
    (32, 8): (67, 78, 76),
    (32, 16): (26, 33, 32),
    (36, 12): (52, 63, 60),
    (48, 12): (97, 114, 112),
    (48, 16): (68, 83, 80),
    (64, 8): (284, 308, 306),
    (64, 32): (50, 65, 64),
}


@pytest.mark.parametrize("size", list(SEARCHED))
def test_the_best_orders_beat_beta(size):
    assert (fewest_swaps(*size), beta_swaps(*size), replay(best(*size))) == SEARCHED[size]


def test_every_order_kept_with_the_package_is_better_than_beta():
    kept = {tuple(map(int, size.split(","))) for size in json.loads(files("headrace.pipeline").joinpath("orders.json").read_text())}
    assert kept == set(SEARCHED)
    for bound, of_beta, of_best in SEARCHED.values():
        assert bound <= of_best < of_beta


@pytest.mark.parametrize(("p", "c", "logical"), [(16, 8, None), (16, 4, None), (16, 4, 8), (64, 32, 4), (8, 8, None), (12, 6, 4)])
def test_comet_moves_groups_and_spreads_buckets(p, c, logical):
    order = comet(p, c, logical, seed=3)
    replay(order)
    assert order == comet(p, c, logical, seed=3)
    if c < p:
        assert order != comet(p, c, logical, seed=4)
        groups = logical or 2 * p // c
        assert order.swaps == beta(groups, c * groups // p).swaps * (p // groups)
        late = sum(len(group) for group in order.buckets[len(order.buckets) // 2 :])
        early = sum(len(group) for group in orders._as_soon_as_possible(p, order.states).buckets[len(order.buckets) // 2 :])
        assert late > early  # buckets do not all come in the first state that could take them


def test_an_epoch_begins_with_what_is_resident():
    order = best(16, 4)
    again = order.starting_with(order.states[-1], seed=1)
    assert again.states[0] == order.states[-1]
    assert replay(again) == order.swaps
    assert again != order.starting_with(order.states[-1], seed=2)
    with pytest.raises(ValueError, match="4 different partitions"):
        order.starting_with([0, 1, 2], seed=1)
    with pytest.raises(ValueError, match="permutation"):
        order.relabeled([0] * 16)


def test_the_checker_finds_what_is_wrong():
    order = beta(6, 3)
    with pytest.raises(ValueError, match="35 of 36"):
        replay(replace(order, buckets=(order.buckets[0][1:], *order.buckets[1:])))
    with pytest.raises(ValueError, match="twice"):
        replay(replace(order, buckets=((*order.buckets[0], order.buckets[0][0]), *order.buckets[1:])))
    with pytest.raises(ValueError, match="which holds"):
        replay(replace(order, buckets=(((5, 5), *order.buckets[0]), *order.buckets[1:])))
    with pytest.raises(ValueError, match="different partitions"):
        replay(replace(order, states=((0, 0, 1), *order.states[1:])))
    with pytest.raises(ValueError, match="states for"):
        replay(replace(order, states=order.states[:-1]))


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="needs both"):
        beta(8, 1)
    with pytest.raises(ValueError, match="from 2 to the 8"):
        best(8, 9)
    with pytest.raises(ValueError, match="at least 1"):
        beta(0, 0)
    with pytest.raises(ValueError, match="logical=3"):
        comet(16, 8, 3)
    with pytest.raises(ValueError, match="swap 9 for 1"):
        from_swaps(10, 3, [(9, 1)])


def test_the_search_finds_the_bound_of_a_small_size():
    found = order_search.search(8, 4, width=100, seed=0, below=9, until=monotonic() + 60)
    assert found is not None
    assert replay(from_swaps(8, 4, found)) == 8 == fewest_swaps(8, 4)
    assert found == order_search.search(8, 4, width=100, seed=0, below=9, until=monotonic() + 60)
    assert order_search.search(4, 2, width=50, seed=0, below=5, until=monotonic() + 60) is None  # the bound
    assert order_search.search(32, 8, width=50, seed=0, below=60, until=monotonic() - 1) is None  # out of time


def test_the_search_goes_on_from_the_beginning_of_an_order():
    known = orders.searched(12, 4)
    found = order_search.search(12, 4, width=50, seed=3, below=22, until=monotonic() + 60, begin=known[:16])
    assert found[:16] == known[:16]
    assert replay(from_swaps(12, 4, found)) == len(found) < 22


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 9), st.integers(2, 8), st.integers(0, 5))
def test_whatever_the_search_finds_is_an_order(partitions, capacity, seed):
    capacity = min(capacity, partitions - 1)
    most = beta_swaps(partitions, capacity) + 1
    found = order_search.search(partitions, capacity, width=30, seed=seed, below=most, until=monotonic() + 60)
    if found is not None:
        assert fewest_swaps(partitions, capacity) <= replay(from_swaps(partitions, capacity, found)) < most


@pytest.mark.parametrize(("size", "parts"), [((16, 4), 2), ((12, 4), 2), ((8, 4), 3), ((8, 3), 4)])
def test_an_order_in_parts_brings_together_all_of_them(size, parts):
    swaps = orders.searched(*size)
    whole = order_search.in_parts(swaps, parts)
    assert replay(from_swaps(size[0] * parts, size[1] * parts, whole)) == parts * len(swaps)


def test_the_command_keeps_what_is_better(tmp_path, monkeypatch, capsys):
    table = tmp_path / "orders.json"
    monkeypatch.setattr(orders, "searched", lambda p, c: None)
    monkeypatch.setattr(order_search, "searched", lambda p, c: None)
    for _ in range(2):  # the second finds the same, which is not better
        monkeypatch.setattr("sys.argv", ["order_search", "8", "4", "--seconds", "20", "--table", str(table)])
        order_search.main()
    swaps = json.loads(table.read_text())["8,4"]
    assert replay(from_swaps(8, 4, swaps)) == 8
    assert "p=8 c=4: 8 loads; BETA 9, at least 8" in capsys.readouterr().out
