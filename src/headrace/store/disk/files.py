"""The directory of a partitioned store: `meta.json`, and one file per partition and version.

Versions are copied on write. `meta.json` names the version of every partition as of the last checkpoint, and those files are never
written again: what changes goes to files of the next version, which belong to nothing until a new `meta.json` is renamed into
place. So a process may be killed at any moment: whoever opens the directory next finds the last checkpoint and removes the rest.
This needs room for every partition twice: S bytes after a checkpoint, up to 2 S just before one.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headrace._files import Lock, sync
from headrace._sealed import read_sealed, write_sealed
from headrace.store.row_table import RowShape

FORMAT = 1
_KIND = "headrace partitioned rows"
_META = "meta.json"
_REMEDY = "restore the directory from a copy, or begin anew in another one"
Sums = tuple[int, int]  # of the rows of a partition with what pads them, and of its states with what pads those
NO_SUMS: Sums = (0, 0)
_LATER = re.compile(r"partition\.\d+\.([2-9]|\d{2,})\.bin|extra\.\d+\.bin")  # what no store has that is being created
_OURS = re.compile(r"(partition\.\d+|extra)\.\d+\.bin|meta\.json\.new")


@dataclass(frozen=True)
class Layout:
    """How a partition lies in its file, and in its slot: rows, then states, padded to `align`. All are of one size."""

    shape: RowShape
    partitions: int
    align: int

    def __post_init__(self) -> None:
        if self.partitions < 1:
            raise ValueError(f"partitions must be at least 1, not {self.partitions}")
        if self.align < 4096 or self.align % 4096:
            raise ValueError(f"align must be a multiple of 4096, which direct reads and writes need, not {self.align}")

    @classmethod
    def of(cls, num_rows: int, width: int, state: int, dtype: torch.dtype, partitions: int, align: int) -> Layout:
        per_part = -(-max(num_rows, 0) // max(partitions, 1))
        return cls(RowShape(num_rows, per_part, width, state, dtype), partitions, align)

    @property
    def row_bytes(self) -> int:
        return self.shape.width * self.shape.dtype.itemsize

    @property
    def state_bytes(self) -> int:
        return self.shape.state * 4

    @property
    def state_offset(self) -> int:
        """Where states begin: the next cache line after the rows."""
        return _up(self.shape.rows_per_part * self.row_bytes, 64)

    @property
    def file_bytes(self) -> int:
        return max(_up(self.state_offset + self.shape.rows_per_part * self.state_bytes, self.align), self.align)

    def rows_of(self, partition: int) -> tuple[int, int]:
        """The ids of a partition: from, to. The last ones are shorter, or empty."""
        begin = min(partition * self.shape.rows_per_part, self.shape.num_rows)
        return begin, min(begin + self.shape.rows_per_part, self.shape.num_rows)


class PartitionFiles:
    """Which file holds which partition: as of the last checkpoint, and now. One process at a time has the directory open."""

    def __init__(self, path: Path, lock: Lock, layout: Layout, meta: Mapping[str, Any]) -> None:
        self.path, self.layout, self.checksummed = path, layout, meta["sums"] is not None
        self.seed, self.calls = int(meta["seed"]), int(meta["calls"])
        self.number, self.extra_file = int(meta["checkpoint"]), meta["extra_file"]
        self.extra: dict[str, Any] | bytes | None = meta["extra"]
        self.kept: list[int] = list(meta["versions"])
        self.versions = list(self.kept)
        self.checksums: list[Sums] = [(r, s) for r, s in meta["sums"] or [NO_SUMS] * layout.partitions]
        self._lock = lock

    @classmethod
    def create(cls, path: str | os.PathLike[str], layout: Layout, *, seed: int, checksums: bool) -> PartitionFiles:
        """A new directory, which is a store once `commit` was called."""
        folder = Path(path)
        if folder.exists() and (not folder.is_dir() or any(not _OURS.fullmatch(f.name) for f in folder.iterdir())):
            raise FileExistsError(f"{folder} exists: choose another path, or remove it (an interrupted create may be repeated)")
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
        try:
            for left in folder.iterdir():
                left.unlink()
            _check_space(folder, layout.partitions * layout.file_bytes)
        except BaseException:
            lock.close()
            raise
        meta = {"versions": [0] * layout.partitions, "sums": [NO_SUMS] * layout.partitions if checksums else None, "seed": seed}
        return cls(folder, lock, layout, {**meta, "calls": 0, "checkpoint": 0, "extra": None, "extra_file": None})

    @staticmethod
    def is_complete(path: str | os.PathLike[str]) -> bool:
        """Whether a directory is a store. False if there is none, or what is there `create` left behind; else a ValueError."""
        folder = Path(path)
        if (folder / _META).exists():
            return True
        if folder.is_dir() and any(_LATER.fullmatch(file.name) for file in folder.iterdir()):
            raise ValueError(f"{folder / _META} is missing: the store is damaged, {_REMEDY}")
        return False

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> PartitionFiles:
        """The store as of its last checkpoint. What later work left behind is removed."""
        folder = Path(path)
        if not (folder / _META).is_file():
            reason = "its creation was interrupted" if folder.is_dir() and any(map(_is_ours, folder.iterdir())) else "no meta.json"
            raise FileNotFoundError(f"{folder} holds no partitioned rows ({reason}): make them with Partitioned.create")
        lock = _lock(folder)
        try:
            meta = _read(folder / _META)
            files = cls(folder, lock, _layout(folder / _META, meta), meta)
            files._check()
            files._sweep()
            if files.extra_file is not None:
                files.extra = data = (folder / files.extra_file).read_bytes()
                if meta.get("extra_crc32", zlib.crc32(data)) != zlib.crc32(data):
                    raise ValueError(damaged(folder / files.extra_file))
        except BaseException:
            lock.close()
            raise
        return files

    def file(self, partition: int) -> Path:
        """Where the partition is now."""
        return self._file(partition, self.versions[partition])

    def next_file(self, partition: int) -> Path:
        """Where it is to be written: a file that no checkpoint names."""
        return self._file(partition, self.kept[partition] + 1)

    def written(self, partition: int, checksums: Sums) -> None:
        """`next_file` is complete. Its checksums are those of a checkpoint from `commit` on, with the file itself."""
        self.versions[partition] = self.kept[partition] + 1
        self.checksums[partition] = checksums

    def commit(self, calls: int, extra: dict[str, Any] | bytes | None) -> None:
        """Make what is there now the checkpoint: flush files, replace `meta.json`, remove older files."""
        for partition in range(self.layout.partitions):
            if self.versions[partition] != self.kept[partition]:
                sync(self.file(partition))
        number, name = self.number + 1, None
        if isinstance(extra, bytes):
            name = f"extra.{number}.bin"
            (self.path / name).write_bytes(extra)
            sync(self.path / name)
        shape = self.layout.shape
        meta = {
            "format": FORMAT,
            "kind": _KIND,
            "num_rows": shape.num_rows,
            "width": shape.width,
            "state": shape.state,
            "dtype": str(shape.dtype).removeprefix("torch."),
            "partitions": self.layout.partitions,
            "align": self.layout.align,
            "seed": self.seed,
            "calls": calls,
            "checkpoint": number,
            "versions": self.versions,
            "sums": self.checksums if self.checksummed else None,
            "extra": extra if name is None else None,
            "extra_file": name,
            "extra_crc32": zlib.crc32(extra) if isinstance(extra, bytes) else None,
        }
        sync(self.path)  # the names of new files, before what names them
        write_sealed(self.path / _META, meta)
        self.kept, self.calls, self.number = list(self.versions), calls, number
        self.extra, self.extra_file = extra, name
        self._sweep()

    def abandon(self) -> None:
        """Remove a directory that could not be completed."""
        (self.path / _META).unlink(missing_ok=True)
        for file in filter(_is_ours, self.path.iterdir()):
            file.unlink()
        self.path.rmdir()

    def close(self) -> None:
        self._lock.close()

    def _file(self, partition: int, version: int) -> Path:
        return self.path / f"partition.{partition}.{version}.bin"

    def _check(self) -> None:
        for partition in range(self.layout.partitions):
            file = self.file(partition)
            size = file.stat().st_size if file.is_file() else None
            if size != self.layout.file_bytes:
                state = "is missing" if size is None else f"has {size:,} bytes"
                raise ValueError(f"{file} {state}, meta.json says {self.layout.file_bytes:,}: the store is damaged, {_REMEDY}")
        if self.extra_file is not None and not (self.path / self.extra_file).is_file():
            raise ValueError(f"{self.path / self.extra_file} is missing: the store is damaged, {_REMEDY}")

    def _sweep(self) -> None:
        current = {self.file(p).name for p in range(self.layout.partitions)} | {self.extra_file}
        for file in self.path.iterdir():
            if _is_ours(file) and file.name not in current:
                file.unlink(missing_ok=True)


def _read(file: Path) -> dict[str, Any]:
    meta = read_sealed(file, _REMEDY)
    try:
        if meta["kind"] != _KIND:
            raise ValueError(f"it describes {meta['kind']!r}")
        version = meta["format"]
    except (ValueError, KeyError) as error:
        raise ValueError(f"{file} is damaged, or not of a partitioned store: {error!r}") from None
    if version != FORMAT:
        raise ValueError(f"{file} has format {version}; this version of Headrace reads format {FORMAT}")
    return meta


def _layout(file: Path, meta: dict[str, Any]) -> Layout:
    """What `meta.json` says, if it makes sense."""
    try:
        dtype = getattr(torch, meta["dtype"])
        layout = Layout.of(meta["num_rows"], meta["width"], meta["state"], dtype, meta["partitions"], meta["align"])
        kinds: dict[str, type] = {"versions": list, "calls": int, "checkpoint": int, "seed": int}
        for key, kind in kinds.items():
            if not isinstance(meta[key], kind):
                raise ValueError(f"{key} is {meta[key]!r}")
        numbers, sums = meta["versions"], meta.setdefault("sums", None)
        if len(numbers) != layout.partitions or not all(isinstance(n, int) for n in numbers):
            raise ValueError(f"{layout.partitions} partitions, but {len(numbers)} versions")
        if sums is not None and not _are_sums(sums, layout.partitions):
            raise ValueError(f"{layout.partitions} partitions do not have two checksums each")
        if meta["extra_file"] is not None and not _OURS.fullmatch(meta["extra_file"]):
            raise ValueError(f"extra_file is {meta['extra_file']!r}")
        meta["extra"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged: {error!r}") from None
    return layout


def _check_space(folder: Path, needed: int) -> None:
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    if needed > free:
        raise OSError(
            errno.ENOSPC,
            f"{folder} has {free:,} bytes free and the rows need {needed:,}, twice that while they are trained: "
            "use another disk, a smaller width, state or dtype",
        )


def _are_sums(value: object, partitions: int) -> bool:
    if not isinstance(value, list) or len(value) != partitions:
        return False
    return all(isinstance(pair, list) and len(pair) == 2 and all(isinstance(n, int) for n in pair) for pair in value)


def damaged(file: Path) -> str:
    """What is wrong with a file whose checksum is wrong, and what to do."""
    return f"{file} is damaged: its checksum is not the one that was written; {_REMEDY}"


def _lock(folder: Path) -> Lock:
    """Held while the store is open."""
    return Lock(folder, busy=f"{folder} is open elsewhere", remedy="close that store, or end the process that has it open")


def _is_ours(file: Path) -> bool:
    return _OURS.fullmatch(file.name) is not None


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
