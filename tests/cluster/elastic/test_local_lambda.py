"""A local AWS Lambda, called by boto3 as AWS is: its limits and its errors."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from elastic_cases import worker_path
from headrace.cluster import LambdaExecutor, run_task
from headrace.cluster.elastic import WorkerLostError, pack_task, read_result

boto3 = pytest.importorskip("boto3", reason="needs headrace[aws]")
pytest.importorskip("awslambdaric", reason="needs headrace[aws]")

from headrace.cluster.local_lambda import LocalLambda  # noqa: E402
from headrace.cluster.local_lambda.limits import Limits  # noqa: E402

pytestmark = pytest.mark.usefixtures("_credentials")


def _serve(handler="elastic_worker.handle", **limits):
    return LocalLambda(handler, limits=Limits(**limits), environment={"PYTHONPATH": worker_path()})


@pytest.fixture(scope="module")
def echo_module(tmp_path_factory):
    """A folder with handlers that do without torch, so that workers start in a moment."""
    folder = tmp_path_factory.mktemp("handlers")
    (folder / "echo.py").write_text("""
import os, time
def handle(event, context):
    time.sleep(event.get("sleep", 0))
    if event.get("exit") is not None: os._exit(event["exit"])
    hoard = [bytearray(b"x" * 1_000_000) for _ in range(event.get("megabytes", 0)) if time.sleep(0.001) is None]
    if event.get("fail"): raise LookupError(event["fail"])
    return {"pid": os.getpid(), "left": context.get_remaining_time_in_millis(), "text": "x" * event.get("size", 0), "puts": 0}
""")
    (folder / "broken.py").write_text("import nothing_of_that_name\n")
    return folder


@pytest.fixture
def echo(echo_module):
    def serve(module="echo", **limits):
        return LocalLambda(f"{module}.handle", limits=Limits(**limits), environment={"PYTHONPATH": str(echo_module)})

    return serve


def _client(aws, seconds=60):
    from botocore.config import Config

    config = Config(retries={"total_max_attempts": 1}, read_timeout=seconds, max_pool_connections=20)
    return boto3.client("lambda", endpoint_url=aws.endpoint_url, config=config)


def _invoke(client, **event):
    response = client.invoke(FunctionName="headrace", LogType="Tail", Payload=json.dumps(event).encode())
    assert response["StatusCode"] == 200
    report = base64.b64decode(response["LogResult"]).decode()
    return json.loads(response["Payload"].read()), response.get("FunctionError"), report


def test_a_worker_stays_warm_and_its_time_is_reported(echo):
    with echo() as aws:
        client = _client(aws)
        answers = [_invoke(client, sleep=0.05) for _ in range(3)]
        assert len({answer["pid"] for answer, _, _ in answers}) == 1
        assert answers[0][0]["pid"] != os.getpid()
        assert 890_000 < answers[0][0]["left"] <= 900_000
        assert [error for _, error, _ in answers] == [None] * 3
        assert ["Init Duration" in report for _, _, report in answers] == [True, False, False]
        for _, _, report in answers:
            spent = {name: float(value) for name, value in re.findall(r"(\w+) Duration: ([\d.]+) ms", "Call " + report[7:])}
            assert spent["Call"] >= 50
            assert spent["Billed"] == pytest.approx(spent["Call"] + spent.get("Init", 0.0) + 0.5, abs=0.51)  # rounded up
        pids = aws.pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_calls_beyond_the_concurrency_are_throttled(echo):
    with echo(concurrency=2) as aws, ThreadPoolExecutor(2) as threads:
        client = _client(aws)
        slow = [threads.submit(_invoke, client, sleep=1.5) for _ in range(2)]
        time.sleep(0.5)
        with pytest.raises(client.exceptions.TooManyRequestsException) as raised:
            _invoke(client)
        assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429
        assert len({call.result()[0]["pid"] for call in slow}) == 2
        assert aws.throttled == 1
        assert aws.started == 2


def test_six_mebibytes_are_the_limit_each_way(echo):
    with echo() as aws:
        client = _client(aws)
        with pytest.raises(client.exceptions.ClientError, match="RequestEntityTooLarge"):
            client.invoke(FunctionName="headrace", Payload=b'"' + b"x" * (6 << 20) + b'"')
        answer, error, _ = _invoke(client, pad="x" * ((6 << 20) - 100), size=(6 << 20) - 200)
        assert error is None
        assert len(answer["text"]) == (6 << 20) - 200
        answer, error, _ = _invoke(client, size=6 << 20)
        assert error == "Unhandled"
        assert answer["errorType"] == "Function.ResponseSizeTooLarge"
        assert _invoke(client)[1] is None


@pytest.mark.parametrize(
    ("limits", "event", "kind"),
    [
        ({"seconds": 0.3}, {"sleep": 30}, "Sandbox.Timedout"),
        ({"memory": 100}, {"megabytes": 300}, "Runtime.OutOfMemory"),
        ({}, {"exit": 1}, "Runtime.ExitError"),
    ],
)
def test_a_worker_over_its_limits_is_ended_and_another_takes_its_place(echo, limits, event, kind):
    with echo(**limits) as aws:
        client = _client(aws)
        before = _invoke(client)[0]["pid"]
        answer, error, report = _invoke(client, **event)
        assert (error, answer["errorType"]) == ("Unhandled", kind)
        assert "Billed Duration" in report
        after, error, _ = _invoke(client)
        assert error is None
        assert after["pid"] != before


def test_a_killed_worker_is_a_function_error(echo):
    with echo() as aws:
        client = _client(aws)
        pid = _invoke(client)[0]["pid"]
        threading.Timer(0.3, aws.kill, [pid]).start()
        answer, error, _ = _invoke(client, sleep=30)
        assert (error, answer["errorType"]) == ("Unhandled", "Runtime.ExitError")
        assert "SIGKILL" in answer["errorMessage"]
        assert _invoke(client)[0]["pid"] != pid
        with pytest.raises(ValueError, match="none of these"):
            aws.kill(os.getpid())


def test_an_idle_worker_that_was_killed_is_not_noticed(echo):
    with echo() as aws:
        client = _client(aws)
        aws.kill(_invoke(client)[0]["pid"])
        time.sleep(0.1)
        assert _invoke(client)[1] is None


def test_an_exception_of_the_handler_and_one_at_import_are_told(echo):
    with echo() as aws:
        answer, error, _ = _invoke(_client(aws), fail="no row")
        assert (error, answer["errorType"], answer["errorMessage"]) == ("Unhandled", "LookupError", "no row")
        assert answer["stackTrace"]
    with echo("broken") as aws, LambdaExecutor(1, endpoint_url=aws.endpoint_url) as executor:
        call = executor.submit(run_task, b"")
        with pytest.raises(WorkerLostError, match="nothing_of_that_name"):
            call.result()


def test_latency_and_bandwidth_slow_each_call(echo):
    with echo(latency=0.2, bandwidth=40) as aws:
        client = _client(aws)
        _invoke(client)
        begin = time.monotonic()
        report = _invoke(client, pad="x" * 1_000_000, size=500_000)[2]
        assert 0.5 <= time.monotonic() - begin < 0.9  # 0.2 + 12 Mbit / 40 Mbit/s
        assert int(re.search(r"Billed Duration: (\d+) ms", report)[1]) < 200  # what is on its way is not billed


def test_other_functions_and_kinds_of_calls_are_refused(echo):
    with echo() as aws:
        client = _client(aws)
        with pytest.raises(client.exceptions.ResourceNotFoundException):
            client.invoke(FunctionName="other", Payload=b"{}")
        with pytest.raises(client.exceptions.InvalidParameterValueException):
            client.invoke(FunctionName="headrace", InvocationType="Event", Payload=b"{}")
        assert client.invoke(FunctionName="headrace", InvocationType="DryRun")["StatusCode"] == 204
        assert aws.started == 0
    with pytest.raises(ValueError, match="positive"):
        Limits(concurrency=0)


@pytest.mark.slow
def test_throttled_calls_of_the_executor_wait_and_are_counted(local_lambda):
    with LambdaExecutor(4, endpoint_url=local_lambda.endpoint_url, wait=0.05) as executor:  # the server takes two
        calls = [executor.submit(run_task, pack_task("test.sleep", {"seconds": 0.4}, {})) for _ in range(4)]
        pids = {int(read_result(call.result())[1]["pid"]) for call in calls}
        assert len(pids) <= 2
        assert sum(call.usage.throttled for call in calls) >= 2


@pytest.mark.slow
def test_the_command_serves_until_it_is_told_to_end(tmp_path):
    command = [sys.executable, "-m", "headrace.cluster.local_lambda", "--handler", "elastic_worker.handle", "--concurrency", "1"]
    environment = {**os.environ, "PYTHONPATH": worker_path()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as server:
        url = server.stdout.readline().strip()
        with LambdaExecutor(1, endpoint_url=url) as executor:
            x = torch.ones(1, 3)
            result = executor.submit(run_task, pack_task("test.dense", {}, {"x": x, "weight": torch.eye(3)})).result()
        pid = int(read_result(result)[1]["pid"])
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
