"""`Run`: the directory of a training run. `options.json`, `metrics.jsonl`, `trace.json`, `result.json`, checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from headrace._files import Lock, replaced
from headrace._sealed import read_sealed, sealed, unsealed, write_sealed
from headrace.pipeline import Trace
from headrace.train.checkpoint import CheckpointError, load_checkpoint, save_checkpoint

FORMAT = 2
_WITHOUT_LOG = "restore it from a copy, or remove it to go on without its lines"


class Run:
    """A run directory. Every file in it is whole at any time, but for the last line of `metrics.jsonl`, and has a checksum.

    `metrics.jsonl` has one object per line: `{"kind": "step" | "epoch" | "end", ...}`. A checkpoint remembers how long it was, and
    a run that goes on from there cuts off what came after: no line appears twice.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._log: BinaryIO | None = None
        self._lock: Lock | None = None

    @classmethod
    def create(cls, path: str | os.PathLike[str], header: dict[str, Any]) -> Run:
        """A new directory at `path`, which must not hold a run already. It is locked, see `lock`."""
        run = cls(path)
        if run.path.exists() and not run.path.is_dir():
            raise FileExistsError(f"{run.path} is a file: a run is a directory")
        if (run.path / "options.json").exists():
            raise FileExistsError(f"{run.path} holds a run already: resume it, or choose another place")
        if run.path.exists() and any(file.name not in _BEGUN or _filled(file) for file in run.path.iterdir()):
            raise FileExistsError(f"{run.path} holds other files and is no run: choose another place")
        (run.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        run.lock()
        if (run.path / "options.json").exists():  # somebody was faster
            run.unlock()
            raise FileExistsError(f"{run.path} holds a run already: resume it, or choose another place")
        started = datetime.now().isoformat(timespec="seconds")
        run._write("options.json", {"format": FORMAT, "name": run.path.name, "started": started, **header})
        return run

    @property
    def header(self) -> dict[str, Any]:
        """What `options.json` says."""
        file = self.path / "options.json"
        if not file.is_file():
            raise FileNotFoundError(f"{self.path} is no run: it has no options.json")
        header = read_sealed(file, "restore it from a copy, or begin another run")
        if "format" not in header:
            raise ValueError(f"{file} is damaged: 'format' is missing")
        if header["format"] != FORMAT:
            raise ValueError(f"{self.path} has format {header['format']}; this version of Headrace reads format {FORMAT}")
        for name, kind in (("task", str), ("options", dict), ("dataset", dict)):
            if not isinstance(header.setdefault(name, kind()), kind):
                raise ValueError(f"{file} is damaged: {name!r} is {header[name]!r}")
        return header

    def lock(self) -> None:
        """Keep other processes from going on with this run, until `unlock` or the end of this process."""
        remedy = "wait until that has ended, or end it"
        self._lock = self._lock or Lock(self.path / _LOCK, busy=f"{self.path} is in use", remedy=remedy)

    def unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def describe(self, **facts: Any) -> None:
        """Add what is known now to `options.json`."""
        header = self.header
        if any(header.get(name) != value for name, value in facts.items()):
            self._write("options.json", header | facts)

    def log(self, kind: str, **values: Any) -> None:
        """Append a line to `metrics.jsonl`."""
        if self._log is None:
            self._log = open(self.path / "metrics.jsonl", "ab")  # noqa: SIM115 - closed by close()
        try:
            self._log.write(json.dumps(sealed({"kind": kind, **values}, default=float), default=float).encode() + b"\n")
            self._log.flush()
        except OSError as error:
            raise OSError(error.errno, f"the log could not be written: {error.strerror}", self._log.name) from error

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The lines so far, all or of one kind."""
        file = self.path / "metrics.jsonl"
        parsed = self._lines(file.read_bytes()) if file.exists() else []
        return [line for line in parsed if kind is None or line.get("kind") == kind]

    def _lines(self, data: bytes) -> list[dict[str, Any]]:
        *lines, _ = data.split(b"\n")  # what has no line end yet is not whole
        parsed = []
        for number, line in enumerate(lines, start=1):
            try:
                parsed.append(unsealed(line))
            except ValueError as error:
                raise ValueError(f"line {number} of {self._log_file} is damaged: {error}; {_WITHOUT_LOG}") from None
        return parsed

    def save_checkpoint(self, state: dict[str, Any], name: str = "last") -> None:
        save_checkpoint(self._checkpoint(name), {**state, "name": name, "log_position": self.log_position()}, self._log)

    def log_position(self, *, lasting: bool = False) -> int:
        """How long the log is: what a checkpoint remembers. With `lasting`, the log is on the disk first."""
        if lasting and self._log is not None:
            os.fsync(self._log.fileno())
        return self._log.tell() if self._log is not None else self._log_size()

    def check_log(self, position: int) -> None:
        """Raise ValueError unless the log is whole up to `position`, as a checkpoint remembers it. It may be gone altogether."""
        if not self._log_file.exists():
            return
        with self._log_file.open("rb") as file:
            data = file.read(position)
        if len(data) < position:
            raise ValueError(
                f"{self._log_file} has {len(data):,} bytes, and had {position:,} at the last checkpoint: {_WITHOUT_LOG}"
            )
        if not data.endswith(b"\n"[:position]):
            raise ValueError(
                f"{self._log_file} has no line that ends at byte {position:,}, as at the last checkpoint: {_WITHOUT_LOG}"
            )
        self._lines(data)

    def load_checkpoint(self, name: str = "last", *, mapped: bool = False) -> dict[str, Any]:
        path = self._checkpoint(name)
        state = load_checkpoint(path, mapped=mapped)
        if (saved := state.pop("name", name)) != name:
            raise CheckpointError(f"{path} is the checkpoint {saved!r} of a run, not {name!r}: restore it from a copy")
        return state

    def has_checkpoint(self, name: str = "last") -> bool:
        return self._checkpoint(name).exists()

    def cut_log(self, position: int) -> None:
        """Forget the lines after `position`: the run goes on from a checkpoint before them."""
        self.close()
        if self._log_size() > position:
            os.truncate(self.path / "metrics.jsonl", position)

    def save_trace(self, trace: Trace) -> None:
        with replaced(self.path / "trace.json") as aside:
            trace.save(aside)

    def save_result(self, result: dict[str, Any]) -> None:
        self._write("result.json", result)

    def result(self) -> dict[str, Any] | None:
        """What `result.json` says, once the run is done."""
        file = self.path / "result.json"
        return read_sealed(file, "remove it and resume the run, which writes it again") if file.exists() else None

    def close(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def _checkpoint(self, name: str) -> Path:
        return self.path / "checkpoints" / f"{name}.pt"

    @property
    def _log_file(self) -> Path:
        return self.path / "metrics.jsonl"

    def _log_size(self) -> int:
        return self._log_file.stat().st_size if self._log_file.exists() else 0

    def _write(self, name: str, value: dict[str, Any]) -> None:
        write_sealed(self.path / name, value, indent=1, default=str)


# What a run leaves that was killed before its options were written.
_LOCK = ".lock"
_BEGUN = {"checkpoints", "options.json.new", _LOCK}


def _filled(file: Path) -> bool:
    return file.is_dir() and any(file.iterdir())


def next_name(folder: Path, base: str) -> Path:
    """The first of `folder/base-1`, `folder/base-2`, ... that is free."""
    number = 1
    while (folder / f"{base}-{number}").exists():
        number += 1
    return folder / f"{base}-{number}"


@contextmanager
def new_folder(folder: Path, base: str) -> Iterator[Path]:
    """Make `next_name` for this process alone; it goes at the end of the block if nothing was put into it."""
    is_new = not folder.exists()
    while True:
        path = next_name(folder, base)
        with suppress(FileExistsError, FileNotFoundError):  # another process took the name, or removed an empty `folder`
            path.mkdir(parents=True)
            break
    try:
        yield path
    finally:
        with suppress(OSError):
            path.rmdir()
            if is_new:
                folder.rmdir()
