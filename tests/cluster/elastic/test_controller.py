"""The controller: each result once, by key, whatever happens to calls."""

import gc
import os
import random
import signal
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import pytest
import torch

import elastic_worker
from elastic_cases import wait_for_end
from headrace.cluster import LambdaExecutor, ThreadExecutor, run_task
from headrace.cluster.elastic import (
    Call,
    Controller,
    FolderObjects,
    Patience,
    Reference,
    Step,
    TaskError,
    WorkerLostError,
    pack,
    pack_task,
    read_result,
)


class Owned(bytearray):
    """Bytes that a weak reference may follow."""


@dataclass(frozen=True, order=True)
class Key:
    epoch: int
    layer: int
    direction: str
    interval: int


def _key(interval, *, layer=0, direction="forward"):
    return Key(0, layer, direction, interval)


def _payload(interval, **options):
    draw = torch.Generator().manual_seed(interval)
    arrays = {"x": torch.randn(20, 30, generator=draw), "weight": torch.randn(30, 10, generator=draw)}
    return pack_task("test.dense", options, arrays)


def _expected(interval):
    return read_result(run_task(_payload(interval)))[1]["y"]


def _collect(controller, count, *, timeout=60.0):
    """Results of so many tasks, each of which comes once."""
    results = {}
    for _ in range(count):
        key, arrays = controller.next_result(timeout)
        assert key not in results
        results[key] = arrays
        controller.retire(key)
    return results


class Manual(Executor):
    """An executor whose calls end when the test says so."""

    def __init__(self):
        self.calls = []

    def submit(self, function, payload, /):
        call = Call("manual")
        call.set_running_or_notify_cancel()
        self.calls.append((call, function, payload))
        return call

    def end(self, place, error=None):
        call, function, payload = self.calls[place]
        call.set_exception(error) if error is not None else call.set_result(function(payload))

    def wait_for(self, count, seconds=5.0):
        deadline = time.monotonic() + seconds
        while len(self.calls) < count:
            assert time.monotonic() < deadline, f"{len(self.calls)} of {count} calls"
            time.sleep(0.002)


def test_results_arrive_by_key_and_every_call_is_recorded():
    records = []
    with ThreadExecutor(3) as executor, Controller(executor, log=records.append) as controller:
        for interval in range(20):
            controller.launch(_key(interval), _payload(interval))
        results = _collect(controller, 20)
        assert controller.under_way == controller.waiting == 0
    for interval in range(20):
        assert torch.equal(results[_key(interval)]["y"], _expected(interval))
    assert Counter(key for record in records for key in record.keys) == Counter(map(_key, range(20)))
    for record in records:
        assert record.worker == "threads"
        assert record.milliseconds > 0
        assert abs(record.begin - time.time()) < 60
        assert record.bytes_in == len(_payload(0))
        assert record.bytes_out > 0
        assert (record.relaunched, record.duplicates, record.failed, record.throttled) == (False, 0, "", 0)
    assert controller.counts.tasks == controller.counts.calls == 20


def test_any_executor_will_do():
    with ThreadPoolExecutor(2) as executor, Controller(executor) as controller:
        controller.launch(_key(0), _payload(0))
        assert torch.equal(_collect(controller, 1)[_key(0)]["y"], _expected(0))


def test_steps_are_seen_in_order():
    steps = []
    with ThreadExecutor(1) as executor, Controller(executor, observe=lambda step, key: steps.append((step, key))) as controller:
        controller.launch(_key(7), _payload(7))
        _collect(controller, 1)
    assert steps == [(step, _key(7)) for step in (Step.LAUNCHED, Step.RETURNED, Step.ACCEPTED, Step.RETIRED)]


def test_who_looks_for_late_calls_is_not_woken_by_launches_and_results():
    looks, executor = 0, Manual()

    class Counted(Controller):
        def _take_rested(self):
            nonlocal looks
            looks += 1
            return super()._take_rested()

    with Counted(executor, patience=Patience(floor=60.0)) as controller:
        begin = time.monotonic()
        for interval in range(100):
            controller.launch(_key(interval), _payload(interval))
            time.sleep(0.001)  # a thread that was woken would look
            executor.end(interval)
            _collect(controller, 1)
        assert looks <= 2 + (time.monotonic() - begin) / 0.05


def test_it_counts_how_long_calls_take_and_who_waits_for_whom():
    begin = time.monotonic()
    with ThreadExecutor(1) as executor:

        def slow(payload):
            time.sleep(0.1)
            return run_task(payload)

        with Controller(executor, function=slow) as controller:
            controller.launch(_key(0), _payload(0))
            controller.launch(_key(1), _payload(1))
            while executor.queued > 1:  # a worker has the first
                time.sleep(0.001)
            _collect(controller, 1)
            counts = controller.counts
            waited = counts.waited
            assert 0.02 < counts.starved == waited  # the second waits for a worker
            while not controller.waiting:
                time.sleep(0.001)
            _collect(controller, 1)  # the result is there
            assert counts.waited == waited
            controller.launch(_key(2), _payload(2))
            while executor.queued:
                time.sleep(0.001)
            _collect(controller, 1)
            assert counts.waited > waited == counts.starved  # no task waits for a worker
            assert counts.computed >= 0.3
            active = counts.active
            time.sleep(0.2)
            controller.launch(_key(3), _payload(3))
            _collect(controller, 1)
            assert 0.1 <= counts.active - active < 0.1 + time.monotonic() - begin - active - 0.2


def test_a_task_is_under_way_until_its_result_was_used():
    with ThreadExecutor(1) as executor, Controller(executor) as controller:
        controller.launch(_key(0), _payload(0))
        with pytest.raises(ValueError, match="under way already"):
            controller.launch(_key(0), _payload(0))
        with pytest.raises(ValueError, match="no result"):
            controller.retire(_key(1))
        key, _ = controller.next_result(10)
        with pytest.raises(ValueError, match="under way already"):
            controller.launch(key, _payload(0))
        controller.retire(key)
        with pytest.raises(ValueError, match="no result"):
            controller.retire(key)
        controller.launch(key, _payload(0))  # the same key in another life
        _collect(controller, 1)


def test_a_late_task_is_launched_again_and_the_first_result_counts():
    executor, records = Manual(), []
    with Controller(executor, patience=Patience(floor=0.05, first=0.05), log=records.append) as controller:
        controller.launch(_key(0), _payload(0))
        executor.wait_for(2)  # relaunched
        executor.end(1)
        key, arrays = controller.next_result(5)
        assert torch.equal(arrays["y"], _expected(0))
        executor.end(0)  # late
        controller.retire(key)
        with pytest.raises(TimeoutError, match="0 tasks"):
            controller.next_result(0.05)
        assert controller.counts.relaunched == controller.counts.duplicates == 1
    assert [(record.relaunched, record.duplicates) for record in records] == [(True, 0), (False, 1)]


def test_a_result_that_comes_after_its_task_was_retired_and_launched_anew_is_dropped():
    executor = Manual()
    with Controller(executor, patience=Patience(floor=0.05, first=0.05)) as controller:
        controller.launch(_key(0), _payload(0))
        executor.wait_for(2)
        executor.end(1)
        _collect(controller, 1)
        count = len(executor.calls)
        controller.launch(_key(0), _payload(1))
        executor.end(0)  # of the first life
        with pytest.raises(TimeoutError):
            controller.next_result(0.02)
        executor.end(count)
        assert torch.equal(_collect(controller, 1)[_key(0)]["y"], _expected(1))


def test_patience_is_a_multiple_of_the_average_of_layer_and_direction():
    patience = Patience(floor=0.5, ratio=5.0, first=60.0)
    forward, backward = _key(0, layer=1), _key(0, layer=1, direction="backward")
    assert patience.seconds([forward]) == 60.0
    patience.ended([forward], 1.0)
    assert patience.seconds([forward]) == 5.0
    assert patience.seconds([backward]) == 60.0
    patience.ended([forward], 2.0)
    assert patience.seconds([forward]) == pytest.approx(5 * (0.95 * 1.0 + 0.05 * 2.0))
    patience.ended([backward] * 4, 0.4)
    assert patience.seconds([backward]) == 0.5
    assert patience.seconds([forward, backward]) == pytest.approx(5 * (1.05 + 0.1))
    assert patience.seconds([backward], times_late=3) == 4.0
    with pytest.raises(ValueError, match="positive"):
        Patience(floor=0)


def test_the_wait_for_a_worker_does_not_make_a_task_late():
    with ThreadExecutor(1) as executor, Controller(executor, patience=Patience(floor=0.2, first=0.2)) as controller:
        for interval in range(8):
            controller.launch(_key(interval), pack_task("test.sleep", {"seconds": 0.05}, {}))
        _collect(controller, 8)
        assert controller.counts.relaunched == 0


def test_a_worker_that_hangs_does_not_hold_up_the_task(tmp_path):
    arrays = {"x": torch.ones(3)}
    payload = pack_task("test.sleep_first", {"marker": str(tmp_path / "first"), "seconds": 1.0}, arrays)
    with ThreadExecutor(1) as executor, Controller(executor, patience=Patience(floor=0.1, first=0.1)) as controller:
        begin = time.monotonic()
        controller.launch(_key(0), payload)
        _collect(controller, 1)
        assert time.monotonic() - begin < 0.8
        time.sleep(1.2)
        assert controller.counts.duplicates == 1


def test_a_task_that_fails_alike_three_times_ends_the_run_with_its_key_and_traceback():
    with ThreadExecutor(2) as executor, Controller(executor) as controller:
        controller.launch(_key(5), pack_task("test.fail", {"message": "singular"}, {}))
        with pytest.raises(TaskError, match="singular") as raised:
            controller.next_result(10)
        assert raised.value.key == _key(5)
        assert "in fail" in raised.value.remote
        assert controller.counts.calls == controller.counts.failed == 3
        with pytest.raises(TaskError):
            controller.launch(_key(6), _payload(6))


def test_failures_of_different_kinds_are_tried_again():
    executor = Manual()
    with Controller(executor) as controller:
        controller.launch(_key(0), _payload(0))
        kinds = [WorkerLostError("Exit", ""), OSError("net"), WorkerLostError("Exit", ""), OSError("net"), SystemExit(1)]
        for place, error in enumerate(kinds):
            executor.end(place, error)
            executor.wait_for(place + 2)
        executor.end(len(kinds))
        assert torch.equal(_collect(controller, 1)[_key(0)]["y"], _expected(0))
        assert controller.counts.failed == 5


def test_a_failure_waits_for_another_call_of_the_same_task():
    executor = Manual()
    with Controller(executor, patience=Patience(floor=0.05, first=0.05)) as controller:
        controller.launch(_key(0), _payload(0))
        executor.wait_for(2)
        executor.end(0, WorkerLostError("Exit", ""))
        assert len(executor.calls) == 2
        executor.end(1)
        _collect(controller, 1)


def test_errors_of_calls_that_were_given_up_do_not_count():
    executor = Manual()
    with Controller(executor, patience=Patience(floor=0.02, first=0.02)) as controller:
        controller.launch(_key(0), _payload(0))
        executor.wait_for(4)  # each later than the one before
        for place in range(3):
            executor.end(place, WorkerLostError("Exit", ""))
        executor.end(3)
        _collect(controller, 1)
        assert controller.counts.failed == 3


def test_a_call_lost_for_ever_does_not_keep_its_task_from_another_try():
    executor = Manual()
    with Controller(executor, patience=Patience(floor=0.3, first=0.3)) as controller:
        controller.launch(_key(0), _payload(0))
        executor.wait_for(2)
        executor.end(1, WorkerLostError("Exit", ""))
        executor.wait_for(3)
        executor.end(2)
        _collect(controller, 1)


def test_a_result_that_is_no_message_is_a_failure_of_the_task():
    for result, said in ((b"garbage", "no message"), (pack({"error": 1}, {}), "TypeError"), (pack({"error": {}}, {}), "KeyError")):
        with ThreadExecutor(1) as executor, Controller(executor, function=lambda payload, result=result: result) as controller:
            controller.launch(_key(0), _payload(0))
            with pytest.raises(TaskError, match=said):
                controller.next_result(10)


def test_small_tasks_share_a_call(tmp_path):
    records = []
    with ThreadExecutor(1) as executor, Controller(executor, batch=4, linger=0.05, log=records.append) as controller:
        for interval in range(10):
            controller.launch(_key(interval), _payload(interval))
        results = _collect(controller, 10)
        assert controller.counts.calls == 3  # 4, 4, and 2 that waited long enough
    assert sorted(len(record.keys) for record in records) == [2, 4, 4]
    for interval in range(10):
        assert torch.equal(results[_key(interval)]["y"], _expected(interval))


def test_one_task_that_fails_in_a_batch_is_tried_again_alone():
    with ThreadExecutor(1) as executor, Controller(executor, batch=3) as controller:
        controller.launch(_key(0), _payload(0))
        controller.launch(_key(1), pack_task("test.fail", {"message": "alone"}, {}))
        controller.launch(_key(2), _payload(2))
        with pytest.raises(TaskError, match="alone") as raised:
            while True:
                controller.next_result(10)
        assert raised.value.key == _key(1)
        assert controller.counts.calls == 3


def test_a_batch_that_is_lost_is_launched_again_task_by_task():
    executor = Manual()
    with Controller(executor, batch=3) as controller:
        for interval in range(3):
            controller.launch(_key(interval), _payload(interval))
        executor.end(0, WorkerLostError("Exit", ""))
        executor.wait_for(4)
        for place in (3, 1, 2):
            executor.end(place)
        assert len(_collect(controller, 3)) == 3


def test_object_requests_of_tasks_are_recorded(tmp_path):
    objects, records = FolderObjects(tmp_path), []
    objects.put("v1", pack({}, {"weight": torch.eye(3)}))
    payload = pack_task("test.dense", {}, {"x": torch.ones(2, 3), "weight": Reference("v1")}, objects=objects)
    with ThreadExecutor(1) as executor, Controller(executor, log=records.append) as controller:
        for interval in range(2):
            controller.launch(_key(interval), payload)
            _collect(controller, 1)
    assert [record.gets for record in records] == [1, 0]


def test_object_requests_of_a_task_that_fails_are_recorded_too(tmp_path):
    objects, records = FolderObjects(tmp_path), []
    objects.put("v1", pack({}, {"weight": torch.eye(4)}))
    payload = pack_task("test.dense", {}, {"x": torch.ones(2, 3), "weight": Reference("v1")}, objects=objects)
    with ThreadExecutor(1) as executor, Controller(executor, log=records.append) as controller:
        controller.launch(_key(0), payload)
        with pytest.raises(TaskError, match="shapes"):
            controller.next_result(10)
    assert [(record.gets, record.failed) for record in records] == [(1, "RuntimeError"), (0, "RuntimeError"), (0, "RuntimeError")]


def test_closing_cancels_what_is_under_way_and_records_what_ran():
    executor, records = Manual(), []
    with pytest.raises(KeyboardInterrupt), Controller(executor, log=records.append) as controller:
        controller.launch(_key(0), _payload(0))
        raise KeyboardInterrupt
    executor.end(0)  # afterwards: nobody minds
    assert [record.failed for record in records] == ["Abandoned"]
    with pytest.raises(RuntimeError, match="closed"):
        controller.launch(_key(1), _payload(1))


def test_an_executor_that_was_shut_down_is_an_error_of_the_launch():
    executor = ThreadExecutor(1)
    executor.shutdown()
    with Controller(executor) as controller, pytest.raises(RuntimeError, match="shut down"):
        controller.launch(_key(0), _payload(0))


class Unreliable(Executor):
    """Loses, repeats and delays calls, at random."""

    def __init__(self, seed):
        self._draw, self._timers, self._lock = random.Random(seed), [], threading.Lock()

    def submit(self, function, payload, /):
        call: Future[bytes] = Future()
        call.set_running_or_notify_cancel()
        with self._lock:
            fate, delay = self._draw.random(), self._draw.random() * 0.03
        if fate < 0.15:
            return call  # lost without a word
        error = WorkerLostError(f"Kind{delay}", "") if fate < 0.3 else None
        delay += 0.1 if fate > 0.85 else 0.0
        timer = threading.Timer(delay, lambda: call.set_exception(error) if error else call.set_result(function(payload)))
        timer.start()
        self._timers.append(timer)
        return call

    def shutdown(self, wait=True, *, cancel_futures=False):
        for timer in self._timers:
            timer.join()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_every_task_counts_once_whatever_calls_do(seed, batch):
    patience = Patience(floor=0.05, first=0.05)
    with Unreliable(seed) as executor, Controller(executor, batch=batch, patience=patience) as controller:
        for interval in range(40):
            controller.launch(_key(interval), _payload(interval))
        results = _collect(controller, 40)
        assert controller.counts.relaunched > 0
    for interval in range(40):
        assert torch.equal(results[_key(interval)]["y"], _expected(interval))


# A worker ends at each step, on each executor. Starting another one takes seconds outside of threads, so most of these are slow.

WORKER_STEPS = (Step.RECEIVED, Step.COMPUTING, Step.COMPUTED)


def _assert_same_results_once(executor, step, tmp_path, pid_of_worker):
    ended = threading.Event()

    def end_worker(at, key):
        if at == step and not ended.is_set():
            ended.set()
            if (pid := pid_of_worker()) is not None:
                os.kill(pid, signal.SIGKILL)

    marker = str(tmp_path / "ended")
    observe = None if step in WORKER_STEPS else end_worker
    with Controller(executor, function=executor.runs, observe=observe) as controller:
        for interval in range(3):
            options = {"end_at": step.name, "marker": marker} if interval == 1 and step in WORKER_STEPS else {}
            controller.launch(_key(interval), _payload(interval, **options))
        results = _collect(controller, 3)
        assert controller.counts.tasks == 3
    assert ended.is_set() or os.path.exists(marker)
    for interval in range(3):
        assert torch.equal(results[_key(interval)]["y"], _expected(interval))


@pytest.mark.parametrize("step", Step)
def test_a_thread_that_ends_at_a_step_changes_nothing(step, tmp_path):
    with ThreadExecutor(1) as executor:
        executor.runs = elastic_worker.run_in_thread
        _assert_same_results_once(executor, step, tmp_path, lambda: None)


def _pid(executor):
    """Of its one worker, which is warm then. One that has just been killed may still be lost by this call."""
    with suppress(WorkerLostError):
        return int(read_result(executor.submit(executor.runs, _payload(0)).result())[1]["pid"])
    return int(read_result(executor.submit(executor.runs, _payload(0)).result())[1]["pid"])


def _mostly_slow(quick):
    return [pytest.param(step, marks=() if step == quick else pytest.mark.slow) for step in Step]


@pytest.mark.parametrize("step", _mostly_slow(Step.COMPUTED))
def test_a_process_of_ray_killed_at_a_step_changes_nothing(step, tmp_path, ray_executor):
    ray_executor.runs = elastic_worker.run
    pid = _pid(ray_executor)
    _assert_same_results_once(ray_executor, step, tmp_path, lambda: pid)
    wait_for_end([pid])
    assert _pid(ray_executor) != pid


@pytest.mark.usefixtures("_credentials")
@pytest.mark.parametrize("step", _mostly_slow(Step.COMPUTED))
def test_a_process_of_lambda_killed_at_a_step_changes_nothing(step, tmp_path, local_lambda):
    with LambdaExecutor(1, endpoint_url=local_lambda.endpoint_url) as executor:
        executor.runs = run_task
        pid = _pid(executor)
        _assert_same_results_once(executor, step, tmp_path, lambda: pid)
        wait_for_end([pid])
        assert _pid(executor) != pid


@pytest.mark.slow
@pytest.mark.usefixtures("_credentials")
def test_delayed_results_of_lambda_count_once(tmp_path, local_lambda):
    """The slow call gets a worker beside it, and its own answer, which comes later, is dropped."""
    payload = pack_task("test.sleep_first", {"marker": str(tmp_path / "first"), "seconds": 6.0}, {"x": torch.ones(3)})
    records = []
    with LambdaExecutor(1, endpoint_url=local_lambda.endpoint_url) as executor:
        executor.submit(run_task, _payload(0)).result()
        with Controller(executor, patience=Patience(floor=0.2, first=0.2), log=records.append) as controller:
            controller.launch(_key(0), payload)
            assert _collect(controller, 1)[_key(0)]["x"].tolist() == [1.0] * 3
            deadline = time.monotonic() + 20
            while controller.counts.duplicates < controller.counts.calls - 1 and time.monotonic() < deadline:
                time.sleep(0.05)
        assert controller.counts.relaunched >= 1
        assert controller.counts.duplicates == controller.counts.calls - 1
    assert all(record.milliseconds >= 1 for record in records)


def test_a_call_that_ended_is_forgotten_with_its_bytes():
    """No cycle keeps it until the collector runs: the payloads of an epoch are as large as the tables of a server."""
    with ThreadExecutor(1) as executor, Controller(executor) as controller:
        controller.launch(_key(0), payload := Owned(_payload(0)))
        reference = weakref.ref(payload)
        del payload
        gc.disable()
        try:
            _collect(controller, 1)
            deadline = time.monotonic() + 5
            while reference() is not None and time.monotonic() < deadline:
                time.sleep(0.002)
            assert reference() is None
        finally:
            gc.enable()
