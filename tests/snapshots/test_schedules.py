"""Who does what, and when: pure functions, against brute force and simulation."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.graph.changing import sizes
from headrace.snapshots.balance import balance, dealt, equal
from headrace.snapshots.costs import Costs
from headrace.snapshots.overlap import Task, overlap


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=0, max_size=8), st.integers(1, 3))
def test_balance_is_within_grahams_bound_of_the_best(costs, ranks):
    best = min((dealt(costs, owner, ranks).makespan for owner in product(range(ranks), repeat=len(costs))), default=0.0)
    made = balance(costs, ranks)
    assert made.bound <= best + 1e-9
    assert made.makespan <= (4 / 3 - 1 / (3 * ranks)) * best + 1e-9
    assert sorted(group for rank in range(ranks) for group in made.of(rank)) == list(range(len(costs)))


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 10), min_size=10, max_size=10), st.integers(2, 3))
def test_balance_of_ten_groups_is_within_grahams_bound(costs, ranks):
    best = min(dealt(costs, owner, ranks).makespan for owner in product(range(ranks), repeat=len(costs)))
    assert balance(costs, ranks).makespan <= (4 / 3 - 1 / (3 * ranks)) * best + 1e-9


def windows(ranks, *, stride, seed):
    """Costs of groups in order: windows of 8, four groups a rank a step."""
    scale = sizes(8 + stride * (4 * ranks * 100 - 1), seed=seed)
    groups = [scale[first : first + 8].sum() for first in range(0, stride * 4 * ranks * 100, stride)]
    return [groups[i : i + 4 * ranks] for i in range(0, len(groups), 4 * ranks)]


@pytest.mark.parametrize(("ranks", "stride", "gain"), [(2, 8, 1.30), (4, 8, 1.68), (2, 1, 1.13), (4, 1, 1.36)])
def test_equal_counts_take_as_much_longer_as_simulated(ranks, stride, gain):
    steps = [costs for seed in range(10) for costs in windows(ranks, stride=stride, seed=seed)]
    balanced = sum(balance(costs, ranks).makespan for costs in steps)
    assert balanced <= 1.03 * sum(balance(costs, ranks).bound for costs in steps)
    assert sum(equal(costs, ranks).makespan for costs in steps) / balanced == pytest.approx(gain, abs=0.06)


def test_faster_ranks_get_more():
    made = balance([1.0] * 9, 2, speeds=[2.0, 1.0])
    assert (len(made.of(0)), len(made.of(1))) == (6, 3)
    assert made.makespan == made.bound == 3.0
    assert balance([5.0], 3).idle == pytest.approx(2 / 3)


@pytest.mark.parametrize("call", [lambda: balance([1.0], 0), lambda: balance([-1.0], 1), lambda: balance([1.0], 2, speeds=[1.0])])
def test_bad_arguments_are_named(call):
    with pytest.raises(ValueError, match="must be"):
        call()


def test_a_rank_that_slows_down_gets_less():
    draw = np.random.default_rng(0)
    costs, true = Costs(2, first=(1.0, 0.0, 0.0)), np.array([3e-6, 2e-5, 1e-3])
    for step in range(60):
        pace = [1.0, 0.5 if step >= 20 else 1.0]
        groups = [
            (float(e), float(n), 8.0) for e, n in zip(draw.integers(1000, 50000, 16), draw.integers(100, 4000, 16), strict=True)
        ]
        seconds = np.asarray(groups) @ true
        made = balance(costs.of(groups), 2, costs.speeds)
        actual = dealt(list(seconds), made.owner, 2, pace)
        if step >= 30:
            assert actual.makespan <= 1.1 * actual.bound
        for rank in range(2):
            own = made.of(rank)
            costs.measure(rank, [groups[g] for g in own], [seconds[g] / pace[rank] * draw.uniform(0.97, 1.03) for g in own])
    restored = Costs(2, first=(1.0, 0.0, 0.0))
    restored.load_state_dict(costs.state_dict())
    assert restored.of(groups) == costs.of(groups)


def random_tasks(draw, groups, ahead):
    tasks = []
    for group, snapshot in product(range(groups), range(3)):
        tasks.append(Task(group, snapshot, "sum", "graph", float(draw.integers(1, 5)), ahead=ahead))
        tasks.append(Task(group, snapshot, "gates", "dense", float(draw.integers(1, 5))))
    return tasks


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_no_two_tasks_of_a_class_or_a_worker_run_together(ahead, seed):
    tasks = random_tasks(np.random.default_rng(seed), 4, ahead)
    made = overlap(tasks, queue=2)
    assert len(made.placed) == len(tasks)
    for a, b in product(made.placed, made.placed):
        if a is not b and (a.task.kind == b.task.kind or a.worker == b.worker):
            assert a.end <= b.begin or b.end <= a.begin
        if a.task.group == b.task.group and (a.task.snapshot, a.task.operator != "sum") < (
            b.task.snapshot,
            b.task.operator != "sum",
        ):
            assert a.end <= b.begin or (ahead and "sum" in (a.task.operator, b.task.operator) and b.task.operator == "sum")
    assert made.bound <= made.makespan <= made.alone
    assert made.most_waiting <= 2
