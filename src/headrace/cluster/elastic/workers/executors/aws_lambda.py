"""`LambdaExecutor`: workers that are calls of a function of AWS Lambda, which runs `headrace.cluster.elastic.workers.handler`."""

from __future__ import annotations

import base64
import json
import random
import re
import time
from threading import Event
from typing import Any
from uuid import uuid4

from headrace.cluster.elastic.workers.executors.pool import Call, Function, PoolExecutor, WorkerLostError
from headrace.cluster.elastic.workers.extras import require_aws
from headrace.cluster.elastic.workers.objects import Objects
from headrace.cluster.elastic.workers.work import run_task

LIMIT = 6 << 20  # bytes of a call's JSON, each way
_ENVELOPE = 256  # bytes of that JSON beside the payload and the address of objects
_TOO_MANY = 429
_BILLED = re.compile(r"Billed Duration: (\d+) ms")


class LambdaExecutor(PoolExecutor[None]):
    """Each worker is one call at a time. botocore repeats nothing; while AWS answers 429 a call waits, which is counted.

    workers: calls at a time.
    function: its name or ARN, and a version or alias if you like.
    objects: carry payloads and results that are larger than a call may be; without them such a payload is refused.
    endpoint_url: of a server other than AWS, such as `headrace.cluster.local_lambda`.
    wait: seconds before a throttled call is tried again; doubled each time, up to `longest_wait`.

    `payload_limit` is the largest payload or result, in bytes, that needs no object: base64 makes four bytes of three. Credentials,
    region and the function are checked here, by a dry run.
    """

    kind = "lambda"
    floor = 10.0

    def __init__(
        self,
        workers: int,
        *,
        function: str = "headrace",
        objects: Objects | None = None,
        endpoint_url: str | None = None,
        wait: float = 0.1,
        longest_wait: float = 5.0,
    ) -> None:
        self.function, self.objects, self.wait, self.longest_wait = function, objects, wait, longest_wait
        self._client = require_aws(
            "lambda",
            endpoint_url=endpoint_url,
            retries={"total_max_attempts": 1},
            read_timeout=910,  # a function may take 900 seconds
            connect_timeout=10,
            max_pool_connections=1000,
            tcp_keepalive=True,
        )
        address = "" if objects is None else objects.address
        self.payload_limit = (LIMIT - _ENVELOPE - len(json.dumps(address))) // 4 * 3
        self._interrupted = Event()
        self._dry_run()
        super().__init__(workers)

    def submit(self, function: Function, payload: bytes, /) -> Call:  # type: ignore[override]
        """Have the function compute a payload. `function` is `run_task`: what AWS runs was deployed before."""
        if function is not run_task:
            raise ValueError(f"Lambda runs what was deployed as {self.function!r}: submit run_task, not {function}")
        if self.objects is None and len(payload) > self.payload_limit:
            raise ValueError(
                f"a payload of {len(payload)} bytes is larger than a call of Lambda takes, {self.payload_limit}: "
                "use more intervals, or give objects= (S3Objects)"
            )
        return super().submit(function, payload)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. What AWS computes already it also ends; with `wait`, so does this method."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            self._client.close()

    def _open(self) -> None:
        return None

    def _interrupt(self) -> None:
        self._interrupted.set()

    def _dry_run(self) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.invoke(FunctionName=self.function, InvocationType="DryRun")
        except (BotoCoreError, ClientError) as error:
            raise ValueError(f"the function {self.function!r} of AWS Lambda cannot be called: {error}") from error

    def _run(self, worker: None, call: Call, function: Function, payload: bytes) -> bytes:
        name = f"calls/{uuid4().hex}"
        event: dict[str, Any] = {"limit": self.payload_limit, "result": f"{name}.result"}
        if self.objects is None:
            return self._answer(call, event | {"payload": base64.b64encode(payload).decode()})
        event["objects"] = self.objects.address
        by_object = len(payload) > self.payload_limit
        if by_object:
            event["object"] = f"{name}.task"
            self.objects.put(event["object"], payload)
            call.usage.puts += 1
        else:
            event["payload"] = base64.b64encode(payload).decode()
        try:
            return self._answer(call, event)
        finally:
            if by_object:
                self.objects.delete(event["object"])

    def _answer(self, call: Call, event: dict[str, Any]) -> bytes:
        """The result that a worker returns or writes to an object, which is removed."""
        usage = call.usage
        try:
            answer = self._invoke(call, json.dumps(event).encode())
        except WorkerLostError:
            if self.objects is not None:
                self.objects.delete(event["result"])  # it may have come so far
            raise
        usage.puts += answer["puts"]
        usage.gets += answer["gets"]
        if "payload" in answer:
            return base64.b64decode(answer["payload"])
        assert self.objects is not None
        result = self.objects.get(event["result"])
        usage.gets += 1
        usage.bytes_out += len(result)
        self.objects.delete(event["result"])
        return result

    def _invoke(self, call: Call, body: bytes) -> dict[str, Any]:
        usage = call.usage
        usage.bytes_in = max(usage.bytes_in, len(body))
        response, content = self._response(call, body)
        usage.bytes_out = len(content)
        log = base64.b64decode(response.get("LogResult", "")).decode(errors="replace")
        if (billed := _BILLED.search(log)) is not None:
            usage.milliseconds = int(billed[1])
        answer = json.loads(content)
        if not isinstance(answer, dict):
            answer = {"errorMessage": f"its answer is {content[:100]!r}"}
        if "FunctionError" in response or "puts" not in answer:
            trace = "".join(answer.get("stackTrace") or [])
            message = f"{answer.get('errorMessage', 'it is not the handler of headrace')}\n{trace}".rstrip()
            raise WorkerLostError(answer.get("errorType", "UnknownAnswer"), message)
        return answer

    def _response(self, call: Call, body: bytes) -> tuple[dict[str, Any], bytes]:
        """Call the function, again and again while it is throttled."""
        from botocore.exceptions import BotoCoreError, ClientError

        wait = self.wait
        while True:
            try:
                response = self._client.invoke(FunctionName=self.function, LogType="Tail", Payload=body)
                return response, response["Payload"].read()
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                if status >= 500:
                    raise WorkerLostError(error.response["Error"]["Code"], str(error)) from error
                if status != _TOO_MANY:
                    raise
            except BotoCoreError as error:  # no connection, or one that ended
                raise WorkerLostError(type(error).__name__, str(error)) from error
            call.usage.throttled += 1
            call.began = None
            if self._interrupted.wait(wait * random.uniform(0.5, 1.0)):
                raise WorkerLostError("Shutdown", "the executor was shut down")
            wait = min(2 * wait, self.longest_wait)
            call.began = time.monotonic()
