"""Executors: the same bits everywhere, sizes that change, errors before the first task, nothing left behind."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

import elastic_worker
from elastic_cases import wait_for_end, worker_path
from headrace.cluster import LambdaExecutor, RayExecutor, ThreadExecutor, run_task
from headrace.cluster.elastic import FolderObjects, Reference, Requests, S3Objects, WorkerLostError, pack, pack_task, read_result


def _payload(rows=40):
    draw = torch.Generator().manual_seed(3)
    return pack_task(
        "test.dense", {}, {"x": torch.randn(rows, 100, generator=draw), "weight": torch.randn(100, 47, generator=draw)}
    )


def _sleep(seconds):
    return pack_task("test.sleep", {"seconds": seconds}, {})


def test_every_executor_computes_the_same_bits(executor):
    direct = read_result(run_task(_payload()))[1]
    for arrays in (read_result(executor.submit(executor.runs, _payload()).result())[1] for _ in range(3)):
        assert torch.equal(arrays["y"], direct["y"])
        assert torch.equal(arrays["sum"], direct["sum"])
        assert arrays["threads"] == 1
        assert (int(arrays["pid"]) == os.getpid()) == (executor.kind == "threads")


def test_an_error_of_a_task_is_a_result(executor):
    call = executor.submit(executor.runs, pack_task("test.fail", {"message": "odd"}, {}))
    with pytest.raises(RuntimeError, match="ArithmeticError: odd"):
        read_result(call.result())


def test_references_reach_workers_in_other_processes(executor, tmp_path):
    objects = FolderObjects(tmp_path / "weights")
    objects.put("v1", pack({}, {"weight": torch.eye(3)}))
    payload = pack_task("test.dense", {}, {"x": torch.ones(2, 3), "weight": Reference("v1")}, objects=objects)
    gets = [read_result(executor.submit(executor.runs, payload).result())[0]["gets"] for _ in range(2)]
    assert gets == [1, 0]


def test_calls_say_what_they_took(executor):
    payload = _payload()
    call = executor.submit(executor.runs, payload)
    result = call.result()
    assert call.usage.worker == executor.kind
    assert call.usage.bytes_in >= len(payload)
    assert call.usage.bytes_out >= len(result)
    assert (call.usage.milliseconds > 0) == (executor.kind == "lambda")
    assert call.began is not None


def test_the_number_of_workers_changes_while_calls_wait():
    running, most, lock = 0, [0], threading.Lock()

    def work(payload):
        nonlocal running
        with lock:
            running += 1
            most[0] = max(most[0], running)
        time.sleep(0.03)
        with lock:
            running -= 1
        return payload

    with ThreadExecutor(1) as executor:
        for workers in (1, 4, 2):
            executor.resize(workers)
            time.sleep(0.05)  # those that are too many end
            most[0] = 0
            assert [call.result() for call in [executor.submit(work, bytes([i])) for i in range(12)]] == [
                bytes([i]) for i in range(12)
            ]
            assert most[0] == workers == executor.workers
        with pytest.raises(ValueError, match="at least 1"):
            executor.resize(0)
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(work, b"")


def test_waiting_calls_can_be_cancelled_and_an_error_cancels_them_all():
    begun, go_on = threading.Event(), threading.Event()

    def work(payload):
        begun.set()
        go_on.wait()
        return payload

    with pytest.raises(KeyboardInterrupt), ThreadExecutor(1) as executor:
        calls = [executor.submit(work, b"") for _ in range(5)]
        assert begun.wait(5)
        assert calls[1].cancel()
        raise KeyboardInterrupt
    assert all(call.cancelled() for call in calls[1:])
    go_on.set()
    assert calls[0].result(5) == b""


def test_a_worker_that_hangs_can_be_replaced():
    hangs, go_on = threading.Event(), threading.Event()

    def work(payload):
        if payload == b"hangs":
            hangs.set()
            go_on.wait()
        return payload

    with ThreadExecutor(1) as executor:
        first, second = executor.submit(work, b"hangs"), executor.submit(work, b"second")
        assert hangs.wait(5)
        executor.replace(first)
        executor.replace(first)  # once is enough
        assert second.result(5) == b"second"
        go_on.set()
        assert first.result(5) == b"hangs"
        assert executor.workers == 1


def test_a_thread_that_fails_gives_its_error_and_goes_on():
    with ThreadExecutor(1) as executor:
        with pytest.raises(ZeroDivisionError):
            executor.submit(lambda payload: 1 // 0, b"").result()
        assert executor.submit(bytes.upper, b"a").result() == b"A"


# Ray


def test_ray_on_this_machine_listens_on_loopback(ray):
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]


@pytest.mark.slow
def test_workers_of_ray_are_processes_that_end_with_their_executor(ray):
    with RayExecutor(2) as executor:
        calls = [executor.submit(elastic_worker.run, _sleep(1.0)) for _ in range(2)]
        pids = {int(read_result(call.result())[1]["pid"]) for call in calls}
    assert len(pids) == 2
    wait_for_end(pids)


@pytest.mark.slow
def test_a_lost_worker_of_ray_is_told_once_and_another_one_starts(ray):
    with RayExecutor(1) as executor:
        call = executor.submit(elastic_worker.run, pack_task("test.exit", {}, {}))
        with pytest.raises(WorkerLostError):
            call.result()
        read_result(executor.submit(elastic_worker.run, _payload()).result())


def test_more_workers_than_ray_has_room_for_are_refused(ray):
    with pytest.raises(ValueError, match="cpus=0"):
        RayExecutor(3)
    with RayExecutor(2) as executor, pytest.raises(ValueError, match="use fewer"):
        executor.resize(5)  # no worker has started: the first call does that


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_of_ray():
    pytest.importorskip("ray", reason="needs headrace[ray]")
    _assert_ctrl_c_ends_workers("executor = RayExecutor(2)", patience=90)


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"headrace\[ray\]"):
        RayExecutor(1)


# Lambda


@pytest.fixture
def aws(local_lambda, _credentials):
    return local_lambda


def test_what_is_too_large_for_a_call_goes_by_object(aws, tmp_path):
    objects = FolderObjects(tmp_path / "objects")
    with LambdaExecutor(1, endpoint_url=aws.endpoint_url, objects=objects) as executor:
        limit = executor.payload_limit
        assert len(pack_task("test.dense", {}, {"x": torch.empty(1959, 602)})) < limit < 4.5 * (1 << 20)
        x = torch.arange(limit, dtype=torch.uint8)
        call = executor.submit(run_task, pack_task("test.sleep_first", {"marker": str(tmp_path / "m"), "seconds": 0}, {"x": x}))
        assert torch.equal(read_result(call.result())[1]["x"], x)
        assert (call.usage.puts, call.usage.gets) == (2, 2)
        assert call.usage.bytes_in > limit
        assert call.usage.bytes_out > limit
        call = executor.submit(run_task, pack_task("test.large", {"size": limit - 300}, {}))
        assert len(read_result(call.result())[1]["y"]) == limit - 300
        assert (call.usage.puts, call.usage.gets) == (0, 0)
    assert not list(objects.path.rglob("*.*"))


@pytest.mark.slow
def test_a_bucket_carries_what_is_too_large_for_a_call(aws, bucket):
    """Workers are processes of their own, and find the bucket by its address."""
    objects = S3Objects("rows", endpoint_url=bucket)
    with LambdaExecutor(1, endpoint_url=aws.endpoint_url, objects=objects) as executor:
        x = torch.randn(2500, 602)
        call = executor.submit(run_task, pack_task("test.dense", {}, {"x": x, "weight": torch.eye(602)}))
        arrays = read_result(call.result())[1]
    assert int(arrays["pid"]) != os.getpid()
    assert torch.equal(arrays["y"], x.relu())
    assert (call.usage.puts, call.usage.gets) == (2, 2)
    assert objects.requests == Requests(puts=1, gets=1, deletes=2)


def test_without_objects_large_payloads_and_results_are_refused(aws):
    with LambdaExecutor(1, endpoint_url=aws.endpoint_url) as executor:
        with pytest.raises(ValueError, match="more intervals"):
            executor.submit(run_task, bytes(5 << 20))
        call = executor.submit(run_task, pack_task("test.large", {"size": 5 << 20}, {}))
        with pytest.raises(RuntimeError, match="more intervals"):
            read_result(call.result())


def test_lambda_runs_only_what_was_deployed(aws):
    with LambdaExecutor(1, endpoint_url=aws.endpoint_url) as executor, pytest.raises(ValueError, match="deployed"):
        executor.submit(bytes.upper, b"")


@pytest.mark.usefixtures("_no_credentials")
def test_without_credentials_there_is_an_error_before_the_first_task(monkeypatch):
    pytest.importorskip("boto3", reason="needs headrace[aws]")
    with pytest.raises(ValueError, match="AWS_ACCESS_KEY_ID"):
        LambdaExecutor(1, endpoint_url="http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with pytest.raises(ValueError, match="region"):
        LambdaExecutor(1)


def test_a_function_that_is_not_there_is_an_error_before_the_first_task(aws):
    with pytest.raises(ValueError, match=r"'other'.*not found"):
        LambdaExecutor(1, function="other", endpoint_url=aws.endpoint_url)
    with pytest.raises(ValueError, match="cannot be called"):
        LambdaExecutor(1, endpoint_url="http://127.0.0.1:9")


def test_without_boto3_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ModuleNotFoundError, match=r"headrace\[aws\]"):
        LambdaExecutor(1)


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_of_a_local_lambda():
    pytest.importorskip("boto3", reason="needs headrace[aws]")
    pytest.importorskip("awslambdaric", reason="needs headrace[aws]")
    begin = """
from headrace.cluster.local_lambda import LocalLambda
aws = stack.enter_context(LocalLambda("elastic_worker.handle"))
executor = LambdaExecutor(2, endpoint_url=aws.endpoint_url)"""
    _assert_ctrl_c_ends_workers(begin, patience=60, function="run_task")


def _assert_ctrl_c_ends_workers(begin, *, patience, function="elastic_worker.run"):
    program = f"""
import contextlib, os, sys, elastic_worker
from headrace.cluster import LambdaExecutor, RayExecutor, run_task
from headrace.cluster.elastic import pack_task, read_result
with contextlib.ExitStack() as stack:
    {begin.strip().replace(chr(10), chr(10) + "    ")}
    stack.enter_context(executor)
    calls = [executor.submit({function}, pack_task("test.sleep", {{"seconds": 1.0}}, {{}})) for _ in range(2)]
    print(*(int(read_result(call.result())[1]["pid"]) for call in calls), flush=True)
    executor.submit({function}, pack_task("test.sleep", {{"seconds": 300.0}}, {{}})).result()
"""
    path = {"PYTHONPATH": worker_path(), "AWS_ACCESS_KEY_ID": "t", "AWS_SECRET_ACCESS_KEY": "t", "AWS_DEFAULT_REGION": "us-east-1"}
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **path}
    )
    try:
        pids = [int(pid) for pid in child.stdout.readline().split()]
        assert len(set(pids)) == 2, child.stderr.read()
        time.sleep(0.5)
        child.send_signal(2)
        _, errors = child.communicate(timeout=patience)
        assert "KeyboardInterrupt" in errors
    finally:
        child.kill()
        child.communicate()
    wait_for_end(pids)
