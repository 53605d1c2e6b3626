"""Random interleavings of servers, workers and messages: bounds hold, nothing stops, every gradient counts once."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import Case, Simulation, random_case, sequential

from headrace.cluster.elastic import ParameterStore, parameter_store
from headrace.pipeline import Window

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = frozenset(range(4))
FOUR = Case(servers=((0, 1), (2, 3)), reads=dict.fromkeys(range(4), ALL), epochs=range(6))


def run(seed):
    """One interleaving: of each six, three are async with a lead of 0, 1 and 2."""
    random = Random(seed)
    if seed % 2:
        return Simulation(random_case(random, "async", lead=seed // 2 % 3), seed).run()
    case = random_case(random, random.choice(("sync", "pipe")))
    simulation = Simulation(case, seed).run()
    assert simulation.weights == sequential(case)["weights"].tolist(), f"seed {seed}: not the bits of a sequential run"
    return simulation


def asynchronous(lead, **more):
    return replace(FOUR, flow="async", lead=lead, versions="stash", **more)


def test_random_interleavings():
    simulations = [run(seed) for seed in range(1500)]
    servers = [server for simulation in simulations for server in simulation.servers]
    assert sum(server.schedule.relaunched for server in servers) > 1000
    assert sum(server.schedule.duplicates for server in servers) > 1000
    assert {server.schedule.most_lead for server in servers} == {0, 1, 2}


@pytest.mark.slow
def test_ten_thousand_random_interleavings():
    for seed in range(1500, 11_500):
        run(seed)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2**32), st.integers(0, 2**32))
def test_sync_and_pipe_have_the_bits_of_a_sequential_run(which, timing, other_timing):
    case = random_case(Random(which), "sync")
    weights = [
        Simulation(replace(case, flow=flow), seed).run().weights for flow, seed in (("sync", timing), ("pipe", other_timing))
    ]
    assert weights[0] == weights[1] == sequential(case)["weights"].tolist()


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_bounds_are_reached_when_one_interval_is_slow(lead):
    for seed in range(10):
        simulation = Simulation(asynchronous(lead, slow=0), seed).run()
        assert simulation.most_lead == lead
        assert max(server.schedule.most_lead for server in simulation.servers) == lead
        assert max(server.schedule.most_age for server in simulation.servers) == lead + 1


@pytest.mark.parametrize("versions", ["stash", "double_buffer"])
def test_versions_reach_their_bound_and_no_more(versions):
    case = replace(asynchronous(2), versions=versions, update_every=1 if versions == "stash" else 2)
    most = [server.store.most_versions for seed in range(60) for server in Simulation(case, seed).run().servers]
    assert max(most) == (3 if versions == "stash" else 2)


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_a_window_that_is_wider_by_one_is_noticed(monkeypatch, lead):
    needs = Window.needs
    monkeypatch.setattr(Window, "needs", lambda self, epoch: needs(replace(self, lead=self.lead + 1), epoch))
    with pytest.raises(AssertionError, match=f"starts {lead + 1} epochs ahead of the slowest interval, and the bound is {lead}"):
        Simulation(asynchronous(lead, slow=0), seed=0).run()


def test_a_backward_pass_with_other_weights_is_noticed(monkeypatch):
    pin = ParameterStore.pin
    monkeypatch.setattr(ParameterStore, "pin", lambda self, task: max(pin(self, task), self.version))
    with pytest.raises(AssertionError, match="reads other weights than its pass began with"):
        Simulation(asynchronous(1, update_every=1), seed=0).run()


def test_a_sum_by_arrival_is_noticed(monkeypatch):
    case = replace(FOUR, servers=((0, 1, 2, 3),))
    truth = sequential(case)["weights"].tolist()
    assert all(Simulation(case, seed).run().weights == truth for seed in range(5))
    monkeypatch.setattr(parameter_store, "sorted", lambda entries, key=None: list(entries), raising=False)
    assert any(Simulation(case, seed).run().weights != truth for seed in range(5))
