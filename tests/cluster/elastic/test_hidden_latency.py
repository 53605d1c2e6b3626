"""How much of the workers' latency `pipe` hides: the real schedule, and a server and workers in simulated time.

Workers are 100 ms and 200 Mbit/s away, 8 of them for 32 intervals. `benchmarks/latency.py` measures the same with real calls.
"""

import heapq
from dataclasses import dataclass

import pytest

from headrace.cluster.elastic import Direction, Schedule, stages

INTERVALS, WORKERS = 32, 8
LATENCY, BANDWIDTH = 0.1, 200e6 / 8  # seconds, bytes a second
TAKE = 0.001  # seconds in which a server stores a result


@dataclass(frozen=True)
class Work:
    """Of an interval, in seconds: a sum over its neighbors, and a worker's products; and the bytes of a call, there and back."""

    gather: float = 0.03
    compute: float = 0.005
    size: float = 400e3

    def call(self, latency):
        return self.compute + (LATENCY + self.size / BANDWIDTH if latency else 0.0)


def near(reach):
    """Intervals that read the rows of those that are up to `reach` away."""
    return {i: {(i + step) % INTERVALS for step in range(-reach, reach + 1)} for i in range(INTERVALS)}


def epoch(flow, work, *, layers=2, reach=1, latency=True, workers=WORKERS):
    """Seconds of an epoch. A server launches what is ready, and takes results as soon as they are there, as `Server` does."""
    read = near(reach)
    schedule = Schedule(stages(layers), read, read, intervals=INTERVALS, epochs=range(1), flow=flow)
    now, free, results = 0.0, [0.0] * workers, []
    while not schedule.finished:
        for task in schedule.ready():
            schedule.start(task)
            if task.layer or task.direction == Direction.BACKWARD:  # the first layer's sums are made once
                now += work.gather
            begin = max(now, heapq.heappop(free))
            heapq.heappush(free, begin + work.call(latency))
            heapq.heappush(results, (begin + work.call(latency), task))
            while results and results[0][0] <= now:
                now += TAKE
                schedule.done(heapq.heappop(results)[1])
        if not schedule.ready() and results:
            end, task = heapq.heappop(results)
            now = max(now, end) + TAKE
            schedule.done(task)
    return now


def hidden(work, **how):
    """The share that is hidden, and its bound: no epoch is shorter than without latency and a last call, behind which there is no
    work, or than its calls shared evenly."""
    sync, pipe, without = (epoch(flow, work, latency=far, **how) for flow, far in (("sync", 1), ("pipe", 1), ("sync", 0)))
    calls = INTERVALS * len(stages(how.get("layers", 2))) * work.call(True)
    least = max(without + work.call(True), calls / WORKERS)
    return (sync - pipe) / (sync - without), (sync - least) / (sync - without)


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("gather", [0.03, 0.05, 0.1])
def test_most_of_the_latency_is_hidden_where_the_server_has_as_much_to_do_as_its_workers(layers, gather):
    share, bound = hidden(Work(gather), layers=layers)
    assert share >= 0.6
    assert share >= bound - 0.16


def test_it_cannot_be_hidden_where_every_interval_reads_all_others_or_workers_have_no_time():
    assert hidden(Work(), reach=INTERVALS // 2)[0] == pytest.approx(0, abs=0.05)
    share, bound = hidden(Work(gather=0.001))
    assert share <= bound < 0.6
