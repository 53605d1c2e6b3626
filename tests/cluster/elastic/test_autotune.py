"""`Autotuner` against a discrete-event model of a server and its workers."""

import heapq
import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from headrace.cluster.elastic import Autotuner

SERVER_RATE, WORKER_RATE, CALL_PRICE = 0.34 / 3600, 1.7275 * 0.0000166667, 0.2e-6  # dollars a second, and a call
FIXED = (1, 2, 4, 8, 16, 32)
FAST, SLOW = 0.05, 0.6  # seconds of a task, where the server takes 0.04 for a result


@dataclass
class Model:
    """A server that takes results one after the other, and workers that compute tasks.

    A worker's call is paid until the server has taken its result; where it is not `held`, until it is computed. With `circulate`
    so many intervals go round: the next task of one begins when the server has taken its last result. Else tasks never run out.
    """

    server: float
    worker: float
    tuner: Autotuner | None = None
    fixed: int = 1
    circulate: int | None = None
    held: bool = True
    noise: float = 0.0
    later: float | None = None  # seconds of a task in the second half of the run
    spent: float = 0.0
    seconds: float = 0.0
    computed: float = 0.0
    waited: float = 0.0
    starved: float = 0.0
    done: int = 0
    sizes: list[int] = field(default_factory=list)

    def run(self, tasks: int, seed: int = 0) -> "Model":
        draw = random.Random(seed)
        ready = self.circulate if self.circulate is not None else tasks
        computing: list[tuple[float, float]] = []  # end and begin of each call
        queue: list[float] = []  # begins of calls whose results wait
        free_at, taking, now = 0.0, None, 0.0
        while self.done < tasks and not (self.tuner is not None and self.tuner.exhausted):
            allowed = self.fixed if self.tuner is None else self.tuner.workers
            while ready and len(computing) + self.held * (len(queue) + (taking is not None)) < allowed:
                ready -= 1
                each = self.worker if self.later is None or self.done < tasks // 2 else self.later
                heapq.heappush(computing, (self.seconds + each * draw.uniform(1 - self.noise, 1 + self.noise), self.seconds))
            if taking is None and queue:
                taking, free_at = queue.pop(0), self.seconds + self.server * draw.uniform(1 - self.noise, 1 + self.noise)
            if computing and (taking is None or computing[0][0] <= free_at):
                self.seconds, begin = heapq.heappop(computing)
                self.computed += self.seconds - begin
                if taking is None:
                    self.waited += self.seconds - now
                    self.starved += (self.seconds - now) * (ready > 0)
                queue.append(begin)
                now = self.seconds
                self.spent += 0 if self.held else (self.seconds - begin) * WORKER_RATE
                continue
            assert taking is not None
            self.seconds, self.done = free_at, self.done + 1
            self.spent += CALL_PRICE + self.held * (self.seconds - taking) * WORKER_RATE
            taking, ready, now = None, ready + (self.circulate is not None), self.seconds
            if self.tuner is not None:
                seen = {"active": self.seconds, "computed": self.computed, "waited": self.waited, "starved": self.starved}
                self.tuner.observe(self.seconds, **seen, spent=self.cost)
            self.sizes.append(allowed)
        return self

    @property
    def cost(self) -> float:
        return self.spent + self.seconds * SERVER_RATE

    @property
    def value(self) -> float:
        return 1 / (self.seconds * self.cost)


def best_of(worker: float, tasks: int, **how) -> tuple[int, float]:
    values = {n: Model(0.04, worker, fixed=n, **how).run(tasks).value for n in FIXED}
    best = max(values, key=values.__getitem__)
    return best, values[best]


def test_the_model_knows_what_can_be_computed_by_hand():
    alone = Model(0.04, 0.6, fixed=1).run(100)
    assert alone.seconds == pytest.approx(100 * 0.64)
    assert alone.cost == pytest.approx(64 * (SERVER_RATE + WORKER_RATE) + 100 * CALL_PRICE)
    many = Model(0.04, 0.6, fixed=32).run(1000)  # the server is never idle but at first, and 16 workers wait for it
    assert many.seconds == pytest.approx(0.6 + 1000 * 0.04)
    assert Model(0.04, 0.6, fixed=16).run(1000).value > many.value


def test_fast_and_slow_workers_differ_in_the_best_number():
    assert best_of(FAST, 2000)[0] < best_of(SLOW, 2000)[0]


@pytest.mark.parametrize("worker", [FAST, 0.2, SLOW, 1.2])
@pytest.mark.parametrize("noise", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("circulate", [None, 32])
def test_value_is_within_a_fifth_of_the_best_fixed_number(worker, noise, circulate):
    """Over the whole run, its search included, and even more so with the number that it ends with."""
    _, best = best_of(worker, 6000, noise=noise, circulate=circulate)
    tuned = Model(0.04, worker, tuner=Autotuner(circulate or 64), noise=noise, circulate=circulate).run(6000)
    assert tuned.value > 0.8 * best
    assert Model(0.04, worker, fixed=tuned.tuner.workers, noise=noise, circulate=circulate).run(6000).value > 0.9 * best


@pytest.mark.parametrize("worker", [FAST, 0.2, SLOW, 1.2])
@pytest.mark.parametrize("intervals", [32, 64, 100])
def test_so_it_is_where_workers_do_not_wait_for_the_server(worker, intervals):
    how = {"circulate": intervals, "held": False, "noise": 0.5}
    _, best = best_of(worker, 6000, **how)
    assert Model(0.04, worker, tuner=Autotuner(intervals), **how).run(6000).value > 0.9 * best


@pytest.mark.parametrize("worker", [FAST, SLOW])
@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("held", [True, False])
def test_it_settles(worker, noise, held):
    tuned = Model(0.04, worker, tuner=Autotuner(64), circulate=64, held=held, noise=noise).run(10_000)
    late = tuned.sizes[5_000:]
    assert max(late) <= max(1.3 * min(late), min(late) + 1)
    assert sum(a != b for a, b in pairwise(late)) <= 4


@pytest.mark.parametrize(("before", "after"), [(FAST, SLOW), (SLOW, FAST)])
@pytest.mark.parametrize("held", [True, False])
def test_it_follows_workers_that_become_slow_or_fast(before, after, held):
    how = {"circulate": 64, "held": held, "noise": 0.3}
    tuned = Model(0.04, before, later=after, tuner=Autotuner(64), **how).run(16_000)
    _, best = best_of(after, 4000, **how)
    assert Model(0.04, after, fixed=tuned.tuner.workers, **how).run(4000).value > 0.8 * best


def test_it_starts_with_the_intervals_or_a_hundred():
    assert [Autotuner(n).workers for n in (1, 32, 100, 5000)] == [1, 32, 100, 100]
    assert Autotuner(5000, limit=10).workers == 10


@pytest.mark.parametrize("limit", [None, 5])
def test_there_are_never_more_workers_than_intervals_or_allowed(limit):
    tuned = Model(0.01, 5.0, tuner=Autotuner(12, limit=limit), circulate=12).run(2000)
    assert max(tuned.sizes) == tuned.tuner.workers == (limit or 12)


def told(tuner, begin, end, *, compute, waits, starved, pause=0):
    """So many seconds, a result each: workers that compute, and shares of its time that the server waits."""
    for second in range(begin, end):
        tuner.observe(
            second * (1 + pause), active=second, computed=compute * second, waited=waits * second, starved=starved * second
        )


def test_workers_that_have_nothing_to_do_while_the_server_is_busy_are_taken_away():
    tuner = Autotuner(64)
    told(tuner, 0, 1000, compute=10.0, waits=0.1, starved=0.0)
    assert 10 < tuner.workers < 14


def test_seconds_in_which_no_task_is_under_way_say_nothing():
    """A validation, a checkpoint: server and workers rest."""
    tuner = Autotuner(64)
    told(tuner, 0, 1000, compute=50.0, waits=0.5, starved=0.4, pause=100)
    assert tuner.workers == 64


def test_workers_are_kept_where_the_server_waits_for_them():
    """A stage may need them all at once, and another none."""
    tuner = Autotuner(64)
    told(tuner, 0, 1000, compute=10.0, waits=0.5, starved=0.0)
    assert tuner.workers == 64


def test_nothing_is_added_while_no_task_waits():
    tuner = Autotuner(64)
    told(tuner, 0, 1000, compute=10.0, waits=0.0, starved=0.0)
    workers = tuner.workers
    told(tuner, 1000, 2000, compute=10.0, waits=0.9, starved=0.0)  # the end of an epoch: no task that a worker could take
    assert tuner.workers == workers
    told(tuner, 2000, 2300, compute=10.0, waits=0.9, starved=0.9)
    assert tuner.workers > workers


def test_it_judges_by_whole_epochs_and_not_by_calls_from_before_a_change():
    tuner = Autotuner(64, epoch=96)
    told(tuner, 0, 1000, compute=4.0, waits=0.0, starved=0.0)
    _, first, second, *_ = tuner.changes
    assert (first.workers, first.seconds) == (16, 64 + 96)
    assert (second.workers, second.seconds) == (6, first.seconds + 64 + 96 + 1)


def test_each_change_has_a_reason_and_a_time():
    tuned = Model(0.04, SLOW, later=FAST, tuner=Autotuner(64), noise=0.3).run(8000)
    changes = tuned.tuner.changes
    assert len(changes) > 3
    assert changes[0].reason == "as many as intervals"
    for before, after in pairwise(changes):
        assert before.seconds <= after.seconds <= tuned.seconds
        assert before.workers != after.workers
        words = "compute, and the server waits" if after.workers < before.workers else "tasks wait for workers"
        assert words in after.reason


@pytest.mark.parametrize("worker", [FAST, SLOW])
@pytest.mark.parametrize("dollars", [0.002, 0.02])
def test_a_budget_is_used_and_kept(worker, dollars):
    tuned = Model(0.04, worker, tuner=Autotuner(32, budget=dollars), circulate=32, noise=0.3).run(10**6)
    assert tuned.tuner.exhausted
    under_way = tuned.tuner.workers * (worker + 32 * 0.04) * WORKER_RATE
    assert 0.95 * dollars < tuned.cost <= dollars + under_way
    assert tuned.tuner.workers <= 2
    assert "the budget pays for" in tuned.tuner.changes[-1].reason


def test_a_first_call_that_takes_long_is_no_measure_of_what_calls_cost():
    tuner, nothing = Autotuner(32, budget=1.0), {"active": 0.0, "computed": 0.0, "waited": 0.0, "starved": 0.0}
    tuner.observe(30.0, **nothing, spent=0.2)  # a cold start
    assert tuner.workers == 32
    tuner.observe(31.0, **nothing, spent=1.0)
    assert tuner.exhausted


def test_a_budget_that_is_not_reached_changes_nothing():
    free = Model(0.04, SLOW, tuner=Autotuner(32), noise=0.3).run(2000)
    bounded = Model(0.04, SLOW, tuner=Autotuner(32, budget=10.0), noise=0.3).run(2000)
    assert bounded.tuner.changes == free.tuner.changes
    assert not bounded.tuner.exhausted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"intervals": 0}, "intervals must be at least 1, not 0"),
        ({"intervals": 4, "limit": 0}, "limit must be at least 1 worker, not 0"),
        ({"intervals": 4, "budget": 0.0}, "budget must be a positive number of dollars, not 0.0"),
        ({"intervals": 4, "budget": float("nan")}, "budget must be a positive number of dollars, not nan"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Autotuner(**options)
