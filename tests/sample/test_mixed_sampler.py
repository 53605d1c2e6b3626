"""Two workers that share a list of batches: who gets which is a pure function of speeds, and no sample depends on it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from device_cases import assert_same
from headrace.sample import MixedSampler, NeighborSampler, Sampler
from headrace.sample.mixed import Ticket, Worker, choose


def replay(slots, seconds, *, batches, callers, first=None):
    """Batches by worker when `callers` ask for one after the other, and worker p takes `seconds[p](n)` for its n-th batch."""
    workers = [Worker(str(p), count) for p, count in enumerate(slots)]
    now, given, events = 0.0, 0, []  # (end, worker, ticket, began)
    queues = [[] for _ in workers]
    made, free = [0] * len(workers), callers
    while given < batches or events or any(queues):
        while given < batches and free:
            worker = choose(workers, now)
            at = workers.index(worker)
            ticket = Ticket(worker.due(now))
            worker.under_way.append(ticket)
            queues[at].append(ticket)
            given, free = given + 1, free - 1
        for at, worker in enumerate(workers):
            running = sum(event[1] == at for event in events)
            while queues[at] and running < worker.slots:
                took = seconds[at](made[at] + running)
                if first is not None and made[at] + running == 0:
                    took = first[at]
                events.append((now + took, at, queues[at].pop(0), now))
                running += 1
        events.sort(key=lambda event: event[:2])
        now, at, ticket, began = events.pop(0)
        workers[at].under_way.remove(ticket)
        workers[at].measured(now - began, now=now)
        made[at] += 1
        free += 1
    return workers, now


@pytest.mark.parametrize(
    ("slots", "speeds"),
    [((1, 1), (1.0, 1.0)), ((1, 1), (1.0, 3.0)), ((1, 7), (1.0, 7.0)), ((1, 7), (1.0, 20.0)), ((1, 15), (1.0, 2.0))],
)
def test_shares_approach_the_ratio_of_rates_where_many_ask(slots, speeds):
    rates = [count / seconds for count, seconds in zip(slots, speeds, strict=True)]
    workers, end = replay(slots, [lambda _, s=s: s for s in speeds], batches=2000, callers=64)
    for worker, rate in zip(workers, rates, strict=True):
        assert worker.batches / 2000 == pytest.approx(rate / sum(rates), abs=0.05)
    assert end < 1.1 * 2000 / sum(rates)  # hardly anybody was idle


@pytest.mark.parametrize("callers", [1, 2, 8])
@pytest.mark.parametrize("slower", [1.5, 4.0, 30.0, 1000.0])
def test_where_few_ask_a_slow_place_does_not_hold_them_up(callers, slower):
    workers, end = replay((1, 7), [lambda _: 1.0, lambda _: slower], batches=3000, callers=callers)
    assert workers[0].batches > 0.1 * 3000
    assert workers[1].batches >= 2  # and is not forgotten
    assert end < 1.15 * 3000 + 2 * slower  # as if the faster one had been alone


@given(
    slots=st.tuples(st.just(1), st.integers(1, 8)),
    speeds=st.tuples(st.floats(0.1, 1), st.floats(0.1, 1)),
    compiling=st.floats(0, 20),
    callers=st.integers(1, 12),
)
@settings(max_examples=30, deadline=None)
def test_every_place_is_tried_again_after_a_slow_beginning(slots, speeds, compiling, callers):
    seconds = [lambda _, s=s: s for s in speeds]
    first = (speeds[0] + compiling * speeds[1], speeds[1])
    workers, _ = replay(slots, seconds, batches=600, callers=callers, first=first)
    assert sum(worker.batches for worker in workers) == 600
    assert all(not worker.under_way for worker in workers)
    for worker, own in zip(workers, speeds, strict=True):
        assert worker.batches >= 2
        assert worker.seconds == pytest.approx(own, rel=0.01)  # what compiling took is forgotten


def test_a_place_that_was_slow_for_a_while_is_found_to_be_fast_again():
    def slow_in_between(n):
        return 100.0 if 10 <= n < 13 else 1.0

    workers, _ = replay((1, 2), [slow_in_between, lambda _: 2.0], batches=20_000, callers=3)
    assert workers[0].batches > 0.4 * 20_000  # half, but for the time in which it was left alone


def test_a_place_without_measure_comes_first_once():
    device, cpu = Worker("device", 1), Worker("cpu", 2, seconds=0.1, batches=5, last=10.0)
    assert choose([device, cpu], 10.0) is device
    device.under_way.append(Ticket(10.0))
    assert choose([device, cpu], 10.0) is cpu
    cpu.under_way += [Ticket(10.1), Ticket(10.1), Ticket(10.2)]
    assert choose([device, cpu], 10.0) is cpu  # of the other nothing is known yet


def test_while_nothing_is_known_free_slots_are_filled_first():
    workers = [Worker("device", 1), Worker("cpu", 3)]
    order = []
    for now in range(6):
        worker = choose(workers, float(now))
        worker.under_way.append(Ticket(worker.due(float(now))))
        order.append(worker.name)
    assert order[:4] == ["device", "cpu", "cpu", "cpu"]


def test_a_batch_is_due_after_those_before_it():
    worker = Worker("cpu", 2, seconds=1.0)
    assert worker.due(5.0) == 6.0
    worker.under_way = [Ticket(6.0)]
    assert worker.due(5.0) == 6.0
    worker.under_way = [Ticket(6.5), Ticket(6.0)]
    assert worker.due(5.0) == 7.0
    worker.under_way.append(Ticket(7.0))
    assert worker.due(5.0) == 7.5
    assert worker.due(50.0) == 51.0  # what is late should be done any moment


def test_the_faster_to_be_done_is_chosen():
    fast, slow = Worker("fast", 1, seconds=1.0, batches=9), Worker("slow", 1, seconds=2.5, batches=9)
    fast.under_way = [Ticket(1.0)]
    assert choose([fast, slow], 0.0) is fast
    fast.under_way.append(Ticket(2.0))
    assert choose([fast, slow], 0.0) is slow


class Slowed(Sampler):
    """A sampler that takes its time, counts how many use it at once, and fails if told to."""

    def __init__(self, sampler, seconds):
        self.sampler, self.seconds = sampler, seconds
        self.graph, self.fanouts, self.workspace_bytes = sampler.graph, sampler.fanouts, 7
        self.now = self.most = 0
        self.fails, self.lock = set(), threading.Lock()

    def sample(self, seeds, epoch=0, batch=0, **options):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        try:
            time.sleep(self.seconds)
            if batch in self.fails:
                self.fails.discard(batch)
                raise RuntimeError(f"no memory for batch {batch}")
            return self.sampler.sample(seeds, epoch, batch, **options)
        finally:
            with self.lock:
                self.now -= 1

    def seed_times(self, given, seeds):
        return self.sampler.seed_times(given, seeds)


@pytest.fixture(scope="module")
def graph():
    return hr.generate.community(nodes=2000, edges=30_000, classes=4, features=0).graph


def make(graph, device_seconds=0.001, cpu_seconds=0.001, cpu_threads=2):
    device, cpu = (Slowed(NeighborSampler(graph, [5, 3], seed=9), s) for s in (device_seconds, cpu_seconds))
    return MixedSampler(device, cpu, cpu_threads=cpu_threads), device, cpu


@pytest.mark.parametrize(("device_seconds", "cpu_seconds"), [(0.001, 0.02), (0.02, 0.001), (0.004, 0.004)])
def test_every_sample_is_the_plain_samplers(graph, device_seconds, cpu_seconds):
    mixed, device, cpu = make(graph, device_seconds, cpu_seconds)
    plain = NeighborSampler(graph, [5, 3], seed=9)
    jobs = [(torch.arange(20) * 7 + batch, batch) for batch in range(60)]
    with ThreadPoolExecutor(mixed.threads) as threads:
        found = list(threads.map(lambda job: mixed.sample(job[0], 2, job[1], edge_ids=True), jobs))
    for (seeds, batch), sample in zip(jobs, found, strict=True):
        assert_same(plain.sample(seeds, 2, batch, edge_ids=True), sample, batch)
    assert device.most == 1
    assert 1 <= cpu.most <= 2
    shares = mixed.shares()
    assert sum(shares.values()) == pytest.approx(1)
    assert set(shares) == {"device", "cpu"}
    assert min(shares.values()) > 0
    if device_seconds != cpu_seconds:
        assert max(shares, key=shares.get) == ("device" if device_seconds < cpu_seconds else "cpu")


def test_an_error_reaches_its_caller_and_frees_the_slot(graph):
    mixed, device, cpu = make(graph)
    device.fails = cpu.fails = {0, 1, 2, 9}
    failed, done = [], 0
    for batch in range(20):
        try:
            mixed.sample([1, 2], 0, batch)
            done += 1
        except RuntimeError as error:
            failed.append(str(error))
    assert failed == [f"no memory for batch {batch}" for batch in (0, 1, 2, 9)]
    assert done == 16
    assert all(not worker.under_way for worker in mixed.workers)
    assert sum(worker.batches for worker in mixed.workers) == 16
    with pytest.raises(IndexError, match=r"seeds\[0\] is 2000"):
        mixed.sample([2000])
    assert all(not worker.under_way for worker in mixed.workers)


def test_who_is_interrupted_while_waiting_leaves_the_queue(graph, monkeypatch):
    mixed, *_ = make(graph)

    def interrupted(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(mixed._changed, "wait_for", interrupted)
        mixed.sample([1])
    assert all(not worker.under_way for worker in mixed.workers)
    assert mixed.sample([1]).num_seeds == 1


def test_it_is_used_as_a_sampler(graph):
    mixed, *_ = make(graph)
    assert mixed.shares() == {"device": 0.0, "cpu": 0.0}
    pending = mixed.start([3, 4], 1, 2, edge_ids=True, threads=8)
    assert mixed.shares() == {"device": 0.0, "cpu": 0.0}  # nothing is given away before somebody waits for it
    assert_same(NeighborSampler(graph, [5, 3], seed=9).sample([3, 4], 1, 2, edge_ids=True), pending.finish())
    assert (mixed.graph, mixed.fanouts, mixed.threads, mixed.workspace_bytes) == (graph, [5, 3], 3, 14)
    assert mixed.seed_times(None, 2) is None
    with pytest.raises(ValueError, match="time is for temporal sampling"):
        mixed.seed_times([1, 2], 2)
