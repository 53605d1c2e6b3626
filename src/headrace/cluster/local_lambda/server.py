"""`LocalLambda`: the Invoke API of AWS Lambda for one function, whose workers are processes of this machine."""

from __future__ import annotations

import base64
import importlib.util
import json
import math
import os
import re
import signal
import time
from collections.abc import Mapping
from threading import Lock
from types import TracebackType
from urllib.parse import unquote

from headrace.cluster.local_lambda.http import LoopbackHandler, LoopbackServer
from headrace.cluster.local_lambda.limits import Limits
from headrace.cluster.local_lambda.sandbox import Outcome, Sandbox, error_json

_INVOKE = re.compile(r"/2015-03-31/functions/([^/]+)/invocations/?(\?.*)?")
_TRIES = 3  # workers that may end before they take a call


class LocalLambda:
    """What boto3 calls, with `endpoint_url`, as it calls AWS. Workers are real processes of awslambdaric, started when needed.

    A call's JSON, its time, its memory and the number of calls are limited as AWS does it; a worker that ends gives a function
    error. Latency and bandwidth are a wait in front of the worker. What workers send to objects is not slowed.

    handler: `MODULE.FUNCTION`, which workers import.
    environment: variables that workers get beside those of this process.

        with LocalLambda(limits=Limits(concurrency=8)) as aws, LambdaExecutor(8, endpoint_url=aws.endpoint_url) as executor:
            ...
    """

    def __init__(
        self,
        handler: str = "headrace.cluster.elastic.workers.handler.handle",
        *,
        function: str = "headrace",
        limits: Limits | None = None,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        quiet: bool = True,
    ) -> None:
        if importlib.util.find_spec("awslambdaric") is None:
            raise ModuleNotFoundError("workers of a local Lambda need awslambdaric: pip install 'headrace[aws]'")
        self.handler, self.function, self.limits = handler, function, limits or Limits()
        self.throttled = self.started = 0
        self._environment, self._quiet = dict(environment or {}), quiet
        self._idle: list[Sandbox] = []
        self._busy: set[Sandbox] = set()
        self._calls = 0
        self._closed = False
        self._lock = Lock()
        self._server = LoopbackServer(_invoke_api(self), port)
        self.endpoint_url = f"http://{self._server.host}"

    @property
    def pids(self) -> list[int]:
        """Processes of workers, those that compute first."""
        with self._lock:
            return [sandbox.pid for sandbox in [*self._busy, *self._idle] if sandbox.alive]

    def kill(self, pid: int) -> None:
        """End a worker by SIGKILL."""
        if pid not in self.pids:
            raise ValueError(f"process {pid} is none of these workers")
        os.kill(pid, signal.SIGKILL)

    def invoke(self, body: bytes) -> Outcome | None:
        """Answer one event; None if as many are computed as may be."""
        with self._lock:
            if self._calls >= self.limits.concurrency:
                self.throttled += 1
                return None
            self._calls += 1
        try:
            time.sleep(self.limits.latency + self.limits.transfer(len(body)))
            outcome = self._invoke(body)
            time.sleep(self.limits.transfer(len(outcome.content)))
            return outcome
        finally:
            with self._lock:
                self._calls -= 1

    def close(self) -> None:
        """End the server and all workers."""
        self._server.close()
        with self._lock:
            self._closed = True
            sandboxes = [*self._busy, *self._idle]
            self._idle.clear()
        for sandbox in sandboxes:
            sandbox.close()

    def __enter__(self) -> LocalLambda:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _invoke(self, body: bytes) -> Outcome:
        for _ in range(_TRIES):
            sandbox = self._take()
            try:
                outcome = sandbox.invoke(body)
            finally:
                self._give_back(sandbox)
            if outcome is not None:
                return outcome
        return Outcome(error_json("Runtime.ExitError", f"{_TRIES} workers ended before they took the call"), failed=True)

    def _take(self) -> Sandbox:
        """The worker that was busy last, or a new one."""
        with self._lock:
            if self._closed:
                raise RuntimeError("this server was closed")
            while self._idle:
                sandbox = self._idle.pop()
                if sandbox.alive:
                    break
                sandbox.close()
            else:
                sandbox = Sandbox(self.handler, self.limits, environment=self._environment, quiet=self._quiet)
                self.started += 1
            self._busy.add(sandbox)
        return sandbox

    def _give_back(self, sandbox: Sandbox) -> None:
        with self._lock:
            self._busy.discard(sandbox)
            if sandbox.alive and not self._closed:
                self._idle.append(sandbox)
                return
        sandbox.close()


def _invoke_api(aws: LocalLambda) -> type[LoopbackHandler]:
    class InvokeAPI(LoopbackHandler):
        def do_POST(self) -> None:  # noqa: N802
            match = _INVOKE.fullmatch(self.path)
            if match is None or unquote(match[1]).split(":")[0] != aws.function:
                return self._refuse(404, "ResourceNotFoundException", f"Function not found: {self.path}")
            if self.size() > aws.limits.payload:
                said = f"{self.size()} byte payload is too large for the RequestResponse invocation type"
                return self._refuse(413, "RequestEntityTooLargeException", f"{said} (limit {aws.limits.payload} bytes)")
            kind = self.headers.get("X-Amz-Invocation-Type", "RequestResponse")
            if kind == "DryRun":
                self.discard_body()
                return self.reply(204)
            if kind != "RequestResponse":
                return self._refuse(400, "InvalidParameterValueException", f"invocation type {kind} is not known here")
            outcome = aws.invoke(self.body())
            if outcome is None:
                return self._refuse(429, "TooManyRequestsException", "Rate Exceeded.")
            headers = {"X-Amz-Executed-Version": "$LATEST"}
            if outcome.failed:
                headers["X-Amz-Function-Error"] = "Unhandled"
            if self.headers.get("X-Amz-Log-Type") == "Tail":
                headers["X-Amz-Log-Result"] = base64.b64encode(_report(outcome, aws.limits).encode()).decode()
            return self.reply(200, outcome.content, headers)

        def _refuse(self, status: int, kind: str, message: str) -> None:
            if status != 429:  # then it was read
                self.discard_body()
            self.reply(status, json.dumps({"Type": "User", "message": message}).encode(), {"X-Amzn-ErrorType": kind})

    return InvokeAPI


def _report(outcome: Outcome, limits: Limits) -> str:
    """The last line of a call's log. AWS bills a worker's start too."""
    billed = math.ceil(outcome.milliseconds + outcome.start_milliseconds)
    line = f"REPORT\tDuration: {outcome.milliseconds:.2f} ms\tBilled Duration: {billed} ms\tMemory Size: {limits.memory} MB"
    line += f"\tMax Memory Used: {outcome.peak_memory} MB"
    return line + (f"\tInit Duration: {outcome.start_milliseconds:.2f} ms" if outcome.start_milliseconds else "")
