"""Costs follow measured seconds, decide who does what, and never what comes of it."""

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.nn.cells import TGCN
from headrace.snapshots import Costs, Group
from headrace.snapshots.balance import dealt
from headrace.train import SnapshotOptions
from headrace.train.snapshots.dealing import Dealing, Piece
from rank_threads import ThreadExchange, on_every_rank

TRUE = np.array([3e-6, 2e-5, 1e-3])  # seconds of an edge, a node and a snapshot


def steps(count, groups):
    draw = np.random.default_rng(1)
    firsts = [sorted(draw.choice(88, groups, replace=False)) for _ in range(count)]
    return [[Piece(i, (Group(int(first), 8),)) for i, first in enumerate(own)] for own in firsts]


@pytest.mark.parametrize("slow", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_from_ten_steps_on_a_rank_that_slowed_down_has_less(slow):
    data = hr.generate.snapshots(nodes=300, edges=5000, steps=96, features=2, seed=3)

    def work(ranks):
        draw = np.random.default_rng(ranks.rank)
        dealing = Dealing(data, TGCN(2, 8), "balanced", ranks, ThreadExchange(ranks), 16)
        ratios = []
        for number, pieces in enumerate(steps(45, 16)):
            pace = [0.5 if rank == slow and number >= 20 else 1.0 for rank in range(2)]
            owner = dealing.deal(pieces)
            seconds = [float(TRUE @ dealing.size(piece)) for piece in pieces]
            came = dealt(seconds, owner, 2, pace)
            ratios.append(came.makespan / came.bound)
            for piece, rank, took in zip(pieces, owner, seconds, strict=True):
                if rank == ranks.rank:
                    dealing.measured(piece, took / pace[rank] * draw.uniform(0.97, 1.03))
        return ratios

    here, there = on_every_rank(2, work)
    assert here == there  # both know the same
    assert max(here[20:22]) > 1.25  # before it was seen
    assert max(here[30:]) <= 1.1


def test_ranks_measured_before_costs_are_fitted_have_speeds_of_one_unit():
    costs = Costs(2, first=(20.0, 1e5, 1e3))
    for rank in (0, 1):
        costs.measure(rank, [(1e5, 1e3, 8.0), (2e5, 1e3, 8.0)], [0.5, 0.8])
    assert costs.speeds == pytest.approx([1.0, 1.0], rel=0.05)


def test_a_rank_without_work_is_tried_again():
    costs = Costs(2)
    for _ in range(3):
        costs.measure(0, [(100.0, 10.0, 1.0)], [1.0])
        costs.measure(1, [(100.0, 10.0, 1.0)], [50.0])  # a moment in which the machine had something else to do
    assert costs.speeds[1] < 0.2 * costs.speeds[0]
    for _ in range(30):
        costs.measure(0, [(100.0, 10.0, 1.0)], [1.0])
        costs.measure(1, [], [])
    assert costs.speeds == pytest.approx([1.0, 1.0], rel=0.05)


def test_costs_are_in_the_checkpoint():
    costs = Costs(2)
    costs.measure(1, [(100.0, 10.0, 1.0)] * 4, [2.0] * 4)
    for ranks in (2, 3):
        again = Costs(ranks)
        again.load_state_dict(costs.state_dict())
        assert again.of([(5.0, 2.0, 1.0)]) == costs.of([(5.0, 2.0, 1.0)])
        assert (again.speeds == costs.speeds) == (ranks == 2)


def test_pieces_are_of_one_group_where_groups_are_not_stacked():
    data = hr.generate.snapshots(nodes=20, edges=60, steps=24, features=3, seed=2)
    shape = {"window": 3, "hidden": 4, "epochs": 1, "groups": 6, "val": 0.2, "optimizer": "sgd"}
    made = hr.train.snapshot(data, SnapshotOptions(**shape, stack=4))
    single = hr.train.snapshot(data, SnapshotOptions(**shape, stack=1))
    for name, value in made.model.state_dict().items():
        assert torch.equal(value, single.model.state_dict()[name])
