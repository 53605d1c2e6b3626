"""Two workers: never two operators of one class at a time, sums of features ahead within their queue, results in order."""

import threading
from itertools import combinations
from time import sleep

import pytest
import torch

import headrace as hr
from headrace.nn.neighbor_sum import neighbor_sum
from headrace.snapshots import Group, KeptSums, Operators
from headrace.snapshots.classes import TwoWorkers, Work


@pytest.fixture
def workers():
    made = TwoWorkers(queue=2)
    yield made
    made.close()


GRAPH = hr.Graph.from_edges([0, 1, 2], [1, 2, 0])


def chain(x, turns=3):
    """Products and sums in turn, with gradients; slow enough for the other worker to come in between."""
    for _ in range(turns):
        sleep(0.002)
        x = neighbor_sum("gcn", x * 1.5, GRAPH)
    return x.sum()


def overlaps(spans):
    held = [span for span in spans if span.kind != "wire"]
    return [(a, b) for a, b in combinations(held, 2) if a.kind == b.kind and a.begin < b.end and b.begin < a.end]


@pytest.mark.parametrize("pinned", [False, True])
def test_no_two_operators_of_a_class_at_a_time_forward_and_back(workers, pinned):
    def piece(_, number):
        x = torch.full((3, 2), float(number), requires_grad=True)
        (gradient,) = torch.autograd.grad(chain(x), [x])
        return number, gradient

    work = [Work(lambda sums, number=number: piece(sums, number)) for number in range(5)]
    results = [future.result() for future in workers.start(work, pinned=pinned)]
    assert [number for number, _ in results] == list(range(5))
    spans = workers.classes.spans
    assert not overlaps(spans)
    assert {span.worker for span in spans} == {0, 1}
    if pinned:
        assert all(span.worker == span.piece % 2 for span in spans)
    expected = torch.autograd.grad(chain(x := torch.zeros(3, 2, requires_grad=True)), [x])[0]
    for _, gradient in results:
        torch.testing.assert_close(gradient, expected)


def test_sums_of_features_run_ahead_on_the_second_worker_and_few_wait(workers):
    made = []

    def ahead(number):
        sleep(0.001)
        made.append((number, threading.current_thread().name))
        return number

    def dense(sums):
        sleep(0.01)
        return sums

    work = [Work(dense, lambda number=number: ahead(number)) for number in range(8)]
    assert [future.result() for future in workers.start(work)] == list(range(8))
    assert sorted(number for number, _ in made) == list(range(8))  # once each
    assert 1 <= workers.most_waiting <= 2
    spans = workers.classes.spans
    assert any(span.ahead for span in spans)
    assert all(span.worker == 1 and span.kind == "graph" for span in spans if span.ahead)
    assert not overlaps(spans)


def test_an_error_is_raised_by_who_asks_for_the_piece(workers):
    def fail(_=None):
        raise OSError("no such sum")

    futures = workers.start([Work(lambda _: 1), Work(fail), Work(lambda sums: sums, fail), Work(lambda _: 4)])
    assert (futures[0].result(), futures[3].result()) == (1, 4)
    for future in futures[1:3]:
        with pytest.raises(OSError, match="no such sum"):
            future.result()
    assert [future.result() for future in workers.start([Work(lambda _: 5)])] == [5]  # and they go on


def test_sums_made_ahead_are_the_bits_of_those_made_in_turn(workers):
    data = hr.generate.snapshots(nodes=20, edges=80, steps=8, features=4, seed=1)
    operators = Operators(hr.nn.TGCN(4, 8), data, kept=KeptSums(0))
    groups = [[Group(first, 3)] for first in range(5)]
    work = [
        Work(lambda sums, own=own: operators.rows(own, sums), lambda own=own: operators.fixed(operators.times(own, range(3))))
        for own in groups
    ]
    for own, future in zip(groups, workers.start(work), strict=True):
        assert torch.equal(future.result(), operators.rows(own))


def test_a_queue_holds_something():
    with pytest.raises(ValueError, match="queue must be at least 1, not 0"):
        TwoWorkers(queue=0)
