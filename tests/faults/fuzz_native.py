"""Calls every function of the native module with hostile arguments, in a child process, and says what ended it.

    python tests/faults/fuzz_native.py --seed 1 --calls 100000 --json

A call may return or raise; it must not end the process, hang, or write outside of its arrays. A call is a function of the seed and
its number, so `--only NUMBER` repeats one that failed.
"""

import argparse
import faulthandler
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
from attack import command_line, tell
from hostile import EXACT, Draws, hostile
from native import load_native
from native_calls import FUNCTIONS, GOOD
from native_objects import OBJECTS

EXPECTED = (ValueError, TypeError, MemoryError, OverflowError, IndexError)
ROOM = 1 << 30  # bytes of address space for a child beyond what it begins with
RECORD = struct.Struct("qq48s")  # number of the call, native calls so far, name of the function


class Fuzzer:
    """Makes calls in this process; `record` is a file that has the last one."""

    def __init__(self, seed: int, record: int) -> None:
        self.seed, self.record = seed, record
        self.native = load_native()
        self.calls = 0
        self.outcomes: Counter[str] = Counter()
        self.names = [*FUNCTIONS, *(name for name in OBJECTS for _ in range(3))]
        self.native.id_range(np.zeros(1 << 20, np.int64), 3)  # libgomp's threads, before memory is limited

    def note(self, number: int, name: str) -> None:
        os.pwrite(self.record, RECORD.pack(number, self.calls, name.encode()), 0)

    def one(self, number: int, *, shown: bool = False) -> None:
        draws = Draws(self.seed, number)
        name = draws.pick(self.names)
        self.note(number, name)

        def attempt(function: Any, **arguments: Any) -> Any:
            given = spoilt(draws, arguments, GOOD.get(name, set()))
            self.calls += 1
            self.note(number, name)
            if shown:
                print(
                    name,
                    getattr(function, "__name__", function),
                    {key: describe(value) for key, value in given.items()},
                    flush=True,
                )
            try:
                result = function(**given)
            except EXPECTED as error:
                self.outcomes[type(error).__name__] += 1
                if shown:
                    print(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", flush=True)
                return None
            self.outcomes["returned"] += 1
            return result

        with suppress(MemoryError):  # of arguments that are too large to make
            if name in FUNCTIONS:
                attempt(getattr(self.native, name), **FUNCTIONS[name](draws))
            else:
                OBJECTS[name](self.native, draws, attempt)
        if draws.spoilt():
            raise SystemExit(f"call {number}, {name}, wrote outside of its arrays")


def spoilt(draws: Draws, arguments: dict[str, Any], good: set[str]) -> dict[str, Any]:
    """The arguments, some of them hostile: none in a third of all calls."""
    names = [name for name in arguments if name not in good]
    arrays = [value for value in arguments.values() if isinstance(value, np.ndarray)]
    given = dict(arguments)
    for _ in range(draws.pick((0, 1, 1, 1, 2, 3)) if names else 0):
        name = draws.pick(names)
        given[name] = hostile(draws, arguments[name], arrays)
    return given


def describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}" + (f" {value.tolist()}" if value.size <= 40 else "")
    return repr(value)


def child(seed: int, first: int, calls: int, record: int) -> None:
    """Calls from number `first` on until `calls` were made."""
    faulthandler.enable()
    fuzzer = Fuzzer(seed, record)
    if not EXACT:  # a sanitizer's shadow takes all addresses that there are
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, resource.RLIM_INFINITY))
    number = first
    while fuzzer.calls < calls:
        fuzzer.one(number)
        number += 1
    fuzzer.note(number, "")
    print(json.dumps(fuzzer.outcomes), file=sys.stderr)


def fuzz(seed: int, calls: int, *, first: int = 0, patience: float = 60.0) -> dict[str, Any]:
    """Make `calls` native calls, from number `first` on; `failures` are those that ended a child process or took longer than
    `patience` seconds, and how."""
    failures: list[dict[str, Any]] = []
    environment = {**os.environ, "OMP_STACKSIZE": "512k"}  # libgomp ends a process that has no room for a thread
    done = 0
    while done < calls and len(failures) < 50:  # enough to look at
        with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as errors:
            record = file.fileno()
            os.pwrite(record, RECORD.pack(first, 0, b""), 0)
            command = [sys.executable, __file__, "--child", str(record), "--seed", str(seed), "--first", str(first)]
            process = subprocess.Popen([*command, "--calls", str(calls - done)], pass_fds=(record,), stderr=errors, env=environment)
            hung = _wait(process, record, patience)
            number, made, name = RECORD.unpack(os.pread(record, RECORD.size, 0))
            done += made
            first = number + 1
            if not hung and not process.returncode:
                break
            errors.seek(0)
            said = errors.read().decode(errors="replace")
            end = "hung" if hung else _end(process.returncode)
            failures.append({"seed": seed, "call": number, "function": _text(name), "end": end, "said": said[-4000:]})
    hangs = sum(failure["end"] == "hung" for failure in failures)
    return {"seed": seed, "calls": done, "crashes": len(failures) - hangs, "hangs": hangs, "failures": failures}


def _wait(process: "subprocess.Popen[bytes]", record: int, patience: float) -> bool:
    """Wait for the process to end; True if it made no call for `patience` seconds, after which it is ended."""
    last, since = b"", time.monotonic()
    while True:
        try:
            process.wait(0.5)
            return False
        except subprocess.TimeoutExpired:
            now = os.pread(record, RECORD.size, 0)
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > patience:
                process.kill()
                process.wait()
                return True


def _end(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode()


def main() -> None:
    """The command."""
    parser = command_line(__doc__, "--calls", 10_000, "calls")
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    parser.add_argument("--only", type=int, help="repeat one call in this process, and show it")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments.seed, arguments.first, arguments.calls, arguments.child)
    elif arguments.only is not None:
        with tempfile.TemporaryFile() as scratch:
            Fuzzer(arguments.seed, scratch.fileno()).one(arguments.only, shown=True)
    else:
        tell(fuzz(arguments.seed, arguments.calls, first=arguments.first), as_json=arguments.json)


if __name__ == "__main__":
    main()
