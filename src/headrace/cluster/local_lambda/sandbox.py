"""`Sandbox`: one worker process of awslambdaric, behind a Runtime API of its own, as AWS has it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event
from uuid import uuid4

from headrace.cluster.local_lambda.http import LoopbackHandler, LoopbackServer
from headrace.cluster.local_lambda.limits import Limits

_START_SECONDS = 120.0  # in which a worker must ask for its first call
_TICK = 0.01  # seconds between two looks at a worker's memory and at whether it lives
_API = "/2018-06-01/runtime"


@dataclass(frozen=True)
class Outcome:
    """What came of a call: JSON, whether it is an error, and how long the worker had it."""

    content: bytes
    failed: bool = False
    milliseconds: float = 0.0
    start_milliseconds: float = 0.0  # if this call had to wait for the worker to start
    peak_memory: int = 0  # MB


class Sandbox:
    """A process that takes one call at a time. It stays warm between calls."""

    def __init__(self, handler: str, limits: Limits, *, environment: Mapping[str, str], quiet: bool) -> None:
        self.limits = limits
        self._calls: SimpleQueue[tuple[str, bytes] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[str, bytes, bool]] = SimpleQueue()
        self._asked, self._taken = Event(), Event()  # it asked for a first call; it has taken the present one
        self._cold = True
        self._begin = time.monotonic()
        self._server = LoopbackServer(self._runtime_api())
        output = subprocess.DEVNULL if quiet else None
        self.process = subprocess.Popen(
            [sys.executable, "-m", "awslambdaric", handler],
            env={**os.environ, **environment, **_variables(handler, limits, self._server.host)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the server, which then ends its workers
        )

    @property
    def pid(self) -> int:
        """Of the worker's process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def invoke(self, body: bytes) -> Outcome | None:
        """Have the worker answer one event; None if its process ended before it took the event."""
        request, cold, self._cold = str(uuid4()), self._cold, False
        self._taken.clear()
        self._calls.put((request, body))
        start = self._begin + _START_SECONDS
        while not self._taken.wait(_TICK):
            with suppress(Empty):
                return Outcome(self._answers.get_nowait()[1], failed=True)  # it cannot start, and says why
            if not self.alive:
                return None
            if not self._asked.is_set() and time.monotonic() > start:
                self.kill()
                return self._failure("Sandbox.Timedout", f"the worker did not start within {_START_SECONDS:g} seconds")
        begin = time.monotonic()
        outcome = self._wait(request, begin)
        return Outcome(
            outcome.content,
            outcome.failed,
            milliseconds=(time.monotonic() - begin) * 1e3,
            start_milliseconds=(begin - self._begin) * 1e3 if cold else 0.0,
            peak_memory=outcome.peak_memory,
        )

    def kill(self) -> None:
        """End the process by SIGKILL."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """End the process and its Runtime API."""
        self.kill()
        self._calls.put(None)
        self._server.close()

    def _wait(self, request: str, begin: float) -> Outcome:
        peak = 0
        while True:
            ended = not self.alive  # before the last look for an answer
            with suppress(Empty):
                answered, content, failed = self._answers.get(timeout=0 if ended else _TICK)
                if answered == request:
                    return Outcome(content, failed, peak_memory=peak)
                continue
            if ended:
                code = self.process.returncode
                how = f"signal: {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
                return self._failure("Runtime.ExitError", f"RequestId: {request} Error: Runtime exited with error: {how}", peak)
            peak = max(peak, _resident_memory(self.pid) >> 20)
            if peak > self.limits.memory:
                self.kill()
                said = f"RequestId: {request} Error: Runtime exited with error: signal: killed: more than {self.limits.memory} MB"
                return self._failure("Runtime.OutOfMemory", said, peak)
            if time.monotonic() - begin > self.limits.seconds:
                self.kill()
                said = f"RequestId: {request} Error: Task timed out after {self.limits.seconds:.2f} seconds"
                return self._failure("Sandbox.Timedout", said, peak)

    def _failure(self, kind: str, message: str, peak: int = 0) -> Outcome:
        return Outcome(error_json(kind, message), failed=True, peak_memory=peak)

    def _runtime_api(self) -> type[LoopbackHandler]:
        sandbox = self

        class RuntimeAPI(LoopbackHandler):
            def do_GET(self) -> None:  # noqa: N802
                if self.path != f"{_API}/invocation/next":
                    return self.reply(404)
                sandbox._asked.set()
                call = sandbox._calls.get()
                if call is None:
                    self.close_connection = True
                    return None
                request, body = call
                sandbox._taken.set()
                deadline = int((time.time() + sandbox.limits.seconds) * 1e3)
                headers = {"Lambda-Runtime-Aws-Request-Id": request, "Lambda-Runtime-Deadline-Ms": str(deadline)}
                return self.reply(200, body, headers)

            def do_POST(self) -> None:  # noqa: N802
                parts = self.path.removeprefix(_API).strip("/").split("/")
                if parts == ["init", "error"]:
                    sandbox._answers.put(("", self.body(), True))
                elif len(parts) == 3 and parts[0] == "invocation" and parts[2] in ("response", "error"):
                    if self.size() > sandbox.limits.payload:
                        self.discard_body()
                        said = f"Response payload size exceeded maximum allowed payload size ({sandbox.limits.payload} bytes)."
                        sandbox._answers.put((parts[1], error_json("Function.ResponseSizeTooLarge", said), True))
                        return self.reply(413, error_json("RequestEntityTooLarge", said))
                    sandbox._answers.put((parts[1], self.body(), parts[2] == "error"))
                else:
                    self.discard_body()
                    return self.reply(404)
                return self.reply(202, b'{"status":"OK"}')

        return RuntimeAPI


def error_json(kind: str, message: str) -> bytes:
    """An error as AWS writes it."""
    return json.dumps({"errorType": kind, "errorMessage": message}).encode()


def _variables(handler: str, limits: Limits, host: str) -> dict[str, str]:
    """What AWS sets in a worker's environment; one vCPU, so one thread."""
    return {
        "AWS_LAMBDA_RUNTIME_API": host,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(limits.memory),
        "AWS_LAMBDA_FUNCTION_NAME": "headrace",
        "_HANDLER": handler,
        "OMP_NUM_THREADS": "1",
    }


def _resident_memory(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):  # it has just ended
        return 0
