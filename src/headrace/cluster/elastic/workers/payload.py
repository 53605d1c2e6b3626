"""What travels to a worker and back: the payload of a task, its result or its error. All are messages, see `message`."""

from __future__ import annotations

import os
import traceback
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.cluster.elastic.workers.message import pack, unpack
from headrace.cluster.elastic.workers.objects import Objects

BATCH = "batch"


@dataclass(frozen=True)
class Reference:
    """An array that a task reads from an object, which is a message that has an array of the same name."""

    object: str


class TaskError(RuntimeError):
    """A task failed on its worker. `key` is the task's, `kind` the type of the exception, `remote` its traceback there.

    facts: what the worker says of the task, as `read_result` has it.
    """

    def __init__(self, key: Hashable, kind: str, message: str, remote: str, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"task {key} failed with {kind}: {message}\n\n{remote}".rstrip())
        self.key, self.kind, self.message, self.remote, self.facts = key, kind, message, remote, dict(facts or {})


def pack_task(
    operation: str, options: Mapping[str, Any], arrays: Mapping[str, Tensor | Reference], *, objects: Objects | None = None
) -> bytes:
    """The payload of a task: an operation's name, its options (plain values), and its arrays or where they are.

    objects: where the references lead.
    """
    references = {name: array.object for name, array in arrays.items() if isinstance(array, Reference)}
    if references and objects is None:
        raise ValueError(f"arrays {', '.join(references)} are references: say of which objects, by objects=")
    header = {"operation": operation, "options": dict(options)}
    if references and objects is not None:
        header |= {"references": references, "objects": objects.address}
    return pack(header, {name: array for name, array in arrays.items() if isinstance(array, Tensor)})


def pack_batch(payloads: Sequence[bytes]) -> bytes:
    """One payload of several tasks, which a worker runs one after the other."""
    tasks = {str(place): torch.frombuffer(payload, dtype=torch.uint8) for place, payload in enumerate(payloads)}
    return pack({"operation": BATCH}, tasks)


def unpack_batch(result: bytes) -> list[memoryview]:
    """The result of each task of a batch."""
    _, arrays = read_result(result)
    return [arrays[str(place)].numpy().data for place in range(len(arrays))]


def read_result(result: bytes | memoryview, key: Hashable = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a task says of itself (`pid`, `milliseconds`, `gets` of objects) and the arrays it computed; TaskError if it failed."""
    header, arrays = unpack(result)
    if "error" in header:
        error = header["error"]
        raise TaskError(key, error["kind"], error["message"], error["traceback"], header)
    return header, arrays


def pack_error(error: BaseException, facts: Mapping[str, Any] | None = None) -> bytes:
    """A result that `read_result` raises."""
    text = "".join(traceback.format_exception(error))
    described = {"kind": type(error).__name__, "message": str(error), "traceback": text}
    return pack({"pid": os.getpid(), "gets": 0, **(facts or {}), "error": described}, {})
