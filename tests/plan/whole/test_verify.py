"""Choices are run beside their alternatives."""

import json
from dataclasses import replace

import pytest
import torch

import headrace as hr
from headrace.plan import Verification, advise, verify
from headrace.plan.whole.verify import Measured, alternatives
from machines import round_machine


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return hr.generate.community(nodes=300, edges=3000, classes=4, features=16, seed=1)


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_every_alternative_is_timed(data, model):
    plan = advise(data, model, hidden=8, input_dropout=0.0, machine=round_machine())
    state = torch.get_rng_state()
    found = verify(plan, data, repeats=1)
    assert torch.equal(torch.get_rng_state(), state)
    steps = [row for row in found.rows if row.what == "step"]
    assert [row.name for row in steps] == [str(c) for c in alternatives(plan)]
    assert [row.chosen for row in steps] == [True] + [False] * (len(steps) - 1)
    assert all(row.measured > 0 and row.predicted > 0 for row in found.rows)
    assert steps[0].predicted == pytest.approx(plan.step.seconds)
    assert found.ratio("step") == steps[0].measured / min(row.measured for row in steps)
    assert json.loads(json.dumps(found.as_dict()))["within"] == found.within
    assert str(plan.configuration) in str(found)


def test_alternatives_differ_in_one_choice_or_are_all(data):
    plan = advise(data, "gcn", hidden=8, input_dropout=0.0, machine=round_machine())
    assert len(alternatives(plan, every=True)) == 2 * 3 * 2  # types, ways of the first layer, ways of the second
    assert len(alternatives(plan)) == 1 + 1 + 2 + 1


def test_an_order_that_was_planned_is_run_too():
    data = hr.generate.community(nodes=4000, edges=80_000, classes=20, features=64, homophily=0.98, seed=0)
    plan = advise(data, "sage", hidden=32, epochs=10**6, machine=_slow_to_read(1 << 18), dtype=torch.float32)
    assert plan.order is not None
    found = verify(plan, data, repeats=1)
    assert {row.name.split(",")[0] for row in found.rows if row.what == "step"} > {"as it is"}


def _slow_to_read(cache):
    machine = round_machine(cache_bytes=cache)
    return replace(machine, reads=tuple(replace(r, seconds=100 * r.seconds) for r in machine.reads))


def test_kernels_are_timed_beside_each_other():
    edges = torch.randint(5000, (2, 50_000), generator=torch.Generator().manual_seed(0))
    graph = hr.Graph.from_edges(*edges, 5000)
    plan = advise(graph, [128, 128], machine=round_machine(cache_bytes=1 << 19), dtype=torch.float32, orders=())
    found = verify(plan, graph, repeats=1)
    sums = [row for row in found.rows if row.what == "sum of 128 columns"]
    assert {row.name for row in sums} == {"32 columns at a time", "all columns at once"}
    assert [row.chosen for row in sums] == [True, False]


def test_features_are_drawn_where_there_are_none(data):
    plan = advise(data.graph, [16, 8, 4], conv="gin", machine=round_machine())
    assert verify(plan, data.graph, repeats=1).rows
    with pytest.raises(ValueError, match="one hidden width"):
        verify(advise(data.graph, [16, 8, 4, 2], machine=round_machine()), data.graph)
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        verify(plan, data, repeats=0)


def test_a_choice_counts_as_good_within_a_tenth():
    def rows(chosen, other):
        return Measured("step", "a", 1.0, chosen, True), Measured("step", "b", 1.0, other, False)

    assert Verification(rows(1.0, 2.0)).within
    assert Verification(rows(1.09, 1.0)).within
    missed = Verification((*rows(1.0, 1.0), Measured("sum", "c", 1.0, 1.2, True), Measured("sum", "d", 1.0, 1.0, False)))
    assert not missed.within
    assert missed.worst_ratio == pytest.approx(1.2)
    assert missed.best("sum").name == "d"
    with pytest.raises(ValueError, match="nothing was measured of 'x'"):
        missed.ratio("x")
