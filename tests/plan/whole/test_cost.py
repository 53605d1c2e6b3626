"""Costs against numbers computed by hand, and what must hold of them whatever the sizes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.plan.machine import RowRead
from headrace.plan.whole.cost import (
    ROUND_TRIP,
    Cost,
    aggregation,
    aggregation_bytes,
    elementwise,
    heaviest_row,
    product,
    split_overhead,
)
from headrace.plan.whole.steps import step_cost
from headrace.plan.whole.workload import LayerWork
from machines import CACHE, round_machine

SIZES = {"rows": 1000, "entries": 8000, "width": 32, "dtype": torch.float32}


def test_bytes_of_an_aggregation_are_the_formula():
    assert aggregation_bytes(rows=10, entries=100, width=8, itemsize=4, reuse=1) == 400 + 80 + 320 + 3200
    assert aggregation_bytes(rows=10, entries=100, width=8, itemsize=4, reuse=10) == 400 + 80 + 320 + 320


@pytest.mark.parametrize(
    ("edges", "nodes", "width", "itemsize", "reuse", "gigabytes"),
    [
        (123_718_280, 2_449_029, 100, 4, 1, 51.0),
        (123_718_280, 2_449_029, 100, 2, 1, 25.7),
        (123_718_280, 2_449_029, 256, 4, 1, 129.7),
        (114_615_892, 232_965, 602, 4, 1, 277.0),
        (123_718_280, 2_449_029, 100, 4, 123_718_280 / 2_449_029, 2.5),
    ],
)
def test_bytes_of_published_graphs(edges, nodes, width, itemsize, reuse, gigabytes):
    moved = aggregation_bytes(rows=nodes, entries=edges, width=width, itemsize=itemsize, reuse=reuse)
    assert moved / 1e9 == pytest.approx(gigabytes, rel=0.02)


def test_rows_in_the_cache_cost_hits_alone():
    cost = aggregation(round_machine(), **SIZES, reuse=1.0)  # 128 KiB of rows, 8 ns each, and a stream of them
    assert cost.seconds == pytest.approx((8000 + 1000) * 8e-9 + 128_000e-9)


def test_rows_outside_of_the_cache_cost_misses():
    machine = round_machine()
    row, rows = 1024, 4 * CACHE // 1024
    hit, mixed = 64e-9, 256e-9
    miss = (mixed - hit / 64) / (1 - 1 / 64)
    cost = aggregation(machine, rows=rows, entries=10 * rows, width=256, dtype=torch.float32, reuse=2.0)
    assert cost.seconds == pytest.approx(5 * rows * miss + 6 * rows * hit + rows * row * 1e-9, rel=1e-6)


def test_reads_that_miss_the_nearest_cache_go_to_the_one_behind():
    reads = (*round_machine().reads, RowRead("float32", 1000, 16, 0.5e-9), RowRead("float32", 1000, 1024, 32e-9))
    machine = round_machine(near_bytes=CACHE // 16, reads=reads)
    cost = aggregation(machine, **SIZES, reuse=1.0, near_misses=0.25)
    assert cost.seconds == pytest.approx(2000 * 8e-9 + (6000 + 1000) * 4e-9 + 128_000e-9)


def test_columns_in_turn_read_ids_each_time():
    machine = round_machine()
    rows = 4 * CACHE // 1024
    sizes = {"rows": rows, "entries": 10 * rows, "dtype": torch.float32, "reuse": 10.0}
    whole, halves = (aggregation(machine, width=256, columns=columns, **sizes) for columns in (None, 128))
    assert halves.bytes == whole.bytes + 4 * 10 * rows + 8 * rows
    uneven = aggregation(machine, width=256, columns=100, **sizes)
    assert uneven.bytes == whole.bytes + 2 * (4 * 10 * rows + 8 * rows)


def test_no_entries_cost_the_result_alone():
    cost = aggregation(round_machine(), rows=100, entries=0, width=10, dtype=torch.float32, reuse=1.0)
    assert cost.seconds == pytest.approx(4000e-9)


def test_products_are_operations_or_bytes():
    by_hand = product(round_machine(), rows=100, wide=50, narrow=20, dtype=torch.float32)
    assert by_hand == Cost(4 * (100 * 70 + 1000), pytest.approx(2 * 100 * 50 * 20 * 1e-9))
    thin = product(round_machine(), rows=100, wide=50, narrow=1, dtype=torch.float32)
    assert thin.seconds == pytest.approx(4 * (100 * 51 + 50) * 1e-9)  # more bytes than operations


def test_elementwise_is_a_stream():
    assert elementwise(round_machine(call_seconds=1.0), rows=10, width=10, passes=3, calls=2) == Cost(
        1200, pytest.approx(2 + 1.2e-6)
    )


def test_a_heavy_row_waits_for_memory_on_a_gpu_alone():
    assert heaviest_row(round_machine("cuda"), max_degree=100, at_once=8) == pytest.approx(13 * ROUND_TRIP)
    assert heaviest_row(round_machine(), max_degree=10**6, at_once=8) == 0.0


def test_groups_are_written_and_read_once_more():
    assert split_overhead(round_machine("cuda"), heavy_entries=1000, group=300, width=10).bytes == 2 * 4 * 10 * 4


sizes = st.fixed_dictionaries({"rows": st.integers(1, 10**6), "entries": st.integers(0, 10**8), "width": st.integers(1, 2000)})


@given(sizes=sizes, reuse=st.floats(1, 1000), more=st.integers(1, 1000), half=st.booleans())
@settings(max_examples=60, deadline=None)
def test_more_work_never_costs_less(sizes, reuse, more, half):
    machine, dtype = round_machine(), torch.bfloat16 if half else torch.float32
    base = aggregation(machine, **sizes, dtype=dtype, reuse=reuse)
    for name in sizes:
        larger = aggregation(machine, **{**sizes, name: sizes[name] + more}, dtype=dtype, reuse=reuse)
        assert larger.bytes >= base.bytes
        assert larger.seconds >= base.seconds * (1 - 1e-9)
    reused = aggregation(machine, **sizes, dtype=dtype, reuse=reuse + more)
    assert reused.bytes <= base.bytes
    assert reused.seconds <= base.seconds * (1 + 1e-9)
    if not half:
        narrow = aggregation(machine, **sizes, dtype=torch.bfloat16, reuse=reuse)
        assert narrow.seconds <= base.seconds


@given(
    sizes=st.fixed_dictionaries({name: st.integers(1, 5000) for name in ("rows", "wide", "narrow")}),
    name=st.sampled_from(["rows", "wide", "narrow"]),
    more=st.integers(1, 1000),
)
@settings(max_examples=40, deadline=None)
def test_larger_products_cost_more(sizes, name, more):
    machine = round_machine()
    base = product(machine, **sizes, dtype=torch.float32)
    assert product(machine, **{**sizes, name: sizes[name] + more}, dtype=torch.float32).seconds >= base.seconds


def test_a_kept_sum_saves_its_call():
    machine = round_machine("cuda", sum_seconds=1e-4, layer_seconds=(("float32", 9e-4), ("bfloat16", 9e-4)))
    layer = LayerWork(kind="gin", wide=8, narrow=8, mapped=8, first=True)

    def seconds(how):
        return step_cost(machine, layer, how, rows=4, dtype=torch.float32, sums=lambda width: Cost(0.0, 2e-6)).seconds

    assert seconds("aggregate") - seconds("kept") == pytest.approx(1e-4 + 2e-6)
