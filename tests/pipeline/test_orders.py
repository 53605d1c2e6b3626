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


@pytest.mark.parametrize("size", [(16, 8), (16, 4), (8, 4)])
def test_the_best_orders_beat_beta(size):
    order = best(*size)
    assert replay(order) < beta(*size).swaps
    if size[1] == 4:
        assert order.swaps == fewest_swaps(*size)


def test_every_order_kept_with_the_package_is_better_than_beta():
    for size in json.loads(files("headrace.pipeline").joinpath("orders.json").read_text()):
        p, c = map(int, size.split(","))
        assert replay(best(p, c)) < beta_swaps(p, c)


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
        order.relabelled([0] * 16)


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
    found = order_search.search(8, 4, width=200, seed=0, below=9, until=monotonic() + 60)
    assert found is not None
    assert replay(from_swaps(8, 4, found)) == 8 == fewest_swaps(8, 4)
    assert order_search.search(4, 2, width=50, seed=0, below=5, until=monotonic() + 60) is None  # the bound
    assert order_search.search(32, 8, width=50, seed=0, below=60, until=monotonic() - 1) is None  # out of time
