"""`run_task`: what a worker does with the bytes of a task."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from headrace.cluster.elastic.workers.message import pack, unpack
from headrace.cluster.elastic.workers.objects import MemoryObjects, open_objects
from headrace.cluster.elastic.workers.operations import find_operation
from headrace.cluster.elastic.workers.payload import BATCH, pack_error
from headrace.cluster.elastic.workers.step import Step
from headrace.cluster.elastic.workers.torch_threads import one_torch_thread

_KEPT = 8  # objects that a warm worker keeps


class Worker:
    """Runs tasks, and keeps the last few objects it fetched, by name: weights of a version travel once to a warm worker.

    keep: how many objects.
    observe: is called at the steps RECEIVED, COMPUTING and COMPUTED with the payload's header.
    """

    def __init__(self, *, keep: int = _KEPT, observe: Callable[[Step, Mapping[str, Any]], object] | None = None) -> None:
        self._keep, self._observe = keep, observe or (lambda step, header: None)
        self._kept: OrderedDict[tuple[str, str], dict[str, Tensor]] = OrderedDict()
        self._lock = threading.Lock()

    def run(self, payload: bytes | memoryview) -> bytes:
        """Compute one payload. An exception of the task becomes a result that says so."""
        begin = time.perf_counter()
        facts: dict[str, Any] = {"pid": os.getpid(), "gets": 0}
        try:
            with one_torch_thread():
                computed = self._compute(payload, facts)
            facts["milliseconds"] = (time.perf_counter() - begin) * 1e3
            return pack(facts, computed)
        except Exception as error:
            return pack_error(error, facts)

    def _compute(self, payload: bytes | memoryview, facts: dict[str, Any]) -> Mapping[str, Tensor]:
        header, arrays = unpack(payload)
        if header.get("operation") == BATCH:
            results = ((name, self.run(part.numpy().data)) for name, part in arrays.items())
            return {name: torch.frombuffer(result, dtype=torch.uint8) for name, result in results}
        self._observe(Step.RECEIVED, header)
        compute = find_operation(header.get("operation"))
        for array, name in header.get("references", {}).items():
            if array in arrays:
                raise ValueError(f"array {array!r} is in the payload and given by reference too")
            kept, fetched = self._object(header["objects"], name)
            facts["gets"] += fetched
            if array not in kept:
                raise ValueError(f"object {name!r} has no array {array!r}: it has {', '.join(kept)}")
            arrays[array] = kept[array]
        self._observe(Step.COMPUTING, header)
        computed = compute(header.get("options", {}), arrays)
        self._observe(Step.COMPUTED, header)
        return computed

    def _object(self, address: str, name: str) -> tuple[dict[str, Tensor], bool]:
        """The arrays of an object, and whether it had to be fetched."""
        store = open_objects(address)
        if isinstance(store, MemoryObjects):  # it is here, and must not outlive its store
            return unpack(store.get(name))[1], False
        with self._lock:
            if (kept := self._kept.get((address, name))) is not None:
                self._kept.move_to_end((address, name))
                return kept, False
        _, arrays = unpack(store.get(name))
        with self._lock:
            self._kept[address, name] = arrays
            while len(self._kept) > self._keep:
                self._kept.popitem(last=False)
        return arrays, True


_worker = Worker()


def run_task(payload: bytes) -> bytes:
    """Compute a task: bytes to bytes, in any process, with one thread of torch, so that its bits do not depend on where.

    >>> from headrace.cluster.elastic import operation, pack_task, read_result
    >>> @operation("increment")
    ... def increment(options, arrays):
    ...     return {"y": arrays["x"] + options["by"]}
    >>> read_result(run_task(pack_task("increment", {"by": 2}, {"x": torch.zeros(3)})))[1]
    {'y': tensor([2., 2., 2.])}
    """
    return _worker.run(payload)
