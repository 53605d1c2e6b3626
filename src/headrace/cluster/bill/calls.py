"""`calls.jsonl`: the log of calls to workers that an elastic run keeps in its directory, a line for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from headrace._sealed import unsealed

KINDS = ("lambda", "ray", "threads")
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int and value >= 0,
    "float": lambda value: type(value) in (int, float) and 0 <= value < math.inf,
}


@dataclass(frozen=True)
class Call:
    """A task that was sent to a worker, whether or not its result was used: a call that failed or came twice is paid for too."""

    task: str  # epoch/layer/direction/interval
    began: float  # seconds since the run began
    ms: float
    gb: float  # memory of the worker, of 1,024 MB each; 0 where it is not its own
    kind: str  # lambda is billed by the call; workers of ray and threads are on servers that are paid for
    sent: int = 0  # bytes to the worker
    received: int = 0
    relaunched: bool = False
    duplicate: bool = False
    failed: bool = False
    objects: int = 0  # requests to an object store


def read_calls(folder: Path) -> list[Call]:
    """All calls in `calls.jsonl` and, where other servers wrote files of their own, `calls-*.jsonl`; none where there is no file.

    A last line without an end is being written, and left out. ValueError names a line that is damaged.
    """
    return [call for path in sorted(folder.glob("calls*.jsonl")) for call in _calls(path)]


def _calls(path: Path) -> list[Call]:
    *lines, _ = path.read_bytes().split(b"\n")
    calls = []
    for number, line in enumerate(lines, start=1):
        try:
            calls.append(_call(unsealed(line)))
        except ValueError as error:
            raise ValueError(f"line {number} of {path} is damaged: {error}; restore it from a copy, or remove it") from None
    return calls


def _call(entry: dict[str, Any]) -> Call:
    values: dict[str, Any] = {}  # of the fields of a call; a later version may log more
    for field in fields(Call):
        if field.name in entry:
            values[field.name] = value = entry[field.name]
            if not _CHECKS[str(field.type)](value):
                raise ValueError(f"{field.name!r} is {value!r}")
        elif field.default is MISSING:
            raise ValueError(f"{field.name!r} is missing")
    if values["kind"] not in KINDS:
        raise ValueError(f"'kind' is {values['kind']!r}, not one of {', '.join(KINDS)}")
    return Call(**values)
