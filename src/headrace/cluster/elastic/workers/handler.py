"""`handle`: the function that AWS Lambda runs, in a container image, by `python -m awslambdaric MODULE.handle`.

An event is {"payload": base64} or {"object": name}, with `limit` (bytes that an answer may carry), `objects` (the address of a
store, if there is one) and `result` (the name of an object for a larger result). An answer is {"payload": base64} or
{"object": name}, with the requests that carried this call: `puts` and `gets`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from headrace.cluster.elastic.workers.objects import open_objects
from headrace.cluster.elastic.workers.payload import pack_error
from headrace.cluster.elastic.workers.work import run_task


def handle(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Answer one event of `LambdaExecutor`."""
    return answer(event, run_task)


def answer(event: Mapping[str, Any], run: Callable[[bytes], bytes]) -> dict[str, Any]:
    """The same with any function: for a handler of your own, whose module registers your operations."""
    store = open_objects(event["objects"]) if "objects" in event else None
    gets = 0
    if "object" in event:
        if store is None:
            raise ValueError("an event with `object` needs `objects`, the address of a store")
        payload, gets = store.get(event["object"]), 1
    else:
        payload = base64.b64decode(event["payload"], validate=True)
    result = run(payload)
    if len(result) > event["limit"]:
        if store is not None:
            store.put(event["result"], result)
            return {"object": event["result"], "puts": 1, "gets": gets}
        result = pack_error(
            ValueError(
                f"a result of {len(result)} bytes is larger than a call of Lambda takes, {event['limit']}: "
                "use more intervals, or give the executor objects= (S3Objects)"
            )
        )
    return {"payload": base64.b64encode(result).decode(), "puts": 0, "gets": gets}
