"""The dataset directory: `meta.json`, one `.npy` file per array, and side files such as the id map of an import.

`meta.json` names every file with its shape, type and checksum, and is written last, aside, and renamed into place: until
then the directory is what it was. Files of a new version never have the names of the old ones (they carry its number), so a
reader of the old version keeps its memory maps, and a dataset may be saved over the directory it was opened from. Directories
of other kinds (`headrace.graph.saved.kinds`) are written and read in the same way.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from headrace._files import Lock, put_in_place, sync
from headrace._sealed import sealed, unsealed
from headrace.graph.saved.array_file import ArrayFile, stored_dtype
from headrace.graph.saved.kinds import DATASET, Kind, kind_of

_LOCK = ".lock"
_PATIENCE = 60.0  # seconds that a writer waits for another one
_CHUNK = 16 << 20  # bytes read at a time
T = TypeVar("T")
_SMALL = 256 << 20  # bytes of a directory whose checksums take no time to compare
_DATA_FILE = re.compile(r"[A-Za-z_][\w-]*\.\d+\.(npy|parquet)")


class DatasetWriter:
    """Writes the directory of a dataset, or of another `kind`; what was there is replaced only when the `with` block ends well."""

    def __init__(self, path: str | os.PathLike[str], *, kind: Kind = DATASET) -> None:
        self.path, self.kind = Path(path), kind
        self._meta, self._aside = self.path / kind.meta, self.path / f"{kind.meta}.new"
        self.info: dict[str, object] = {}
        self._arrays: dict[str, dict[str, object]] = {}
        self._open: list[tuple[str, ArrayFile]] = []
        self._side: dict[str, Path] = {}
        if self.path.exists() and not self.path.is_dir():
            raise FileExistsError(f"{self.path} is a file: a {kind.noun} is a directory")
        self._check()

    def _check(self) -> None:
        if not self.kind.replaceable and self._meta.exists():
            raise FileExistsError(f"{self.path} holds a {self.kind.noun} already: remove it, or choose another directory")
        if self.path.exists() and not _is_ours(self.path, self.kind):
            raise FileExistsError(f"{self.path} holds other files and is not a {self.kind.noun}: choose another directory")

    def __enter__(self) -> DatasetWriter:
        busy, remedy = f"{self.path} is being written", "wait until that has ended, or choose another directory"
        while True:
            with suppress(FileNotFoundError):  # another writer gave up, and removed the empty directory
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock = Lock(self.path / _LOCK, busy=busy, remedy=remedy, seconds=_PATIENCE)
                break
        try:
            self._check()
            self._aside.touch()  # marks what an interrupted save leaves behind as a dataset's
            self._remove_folders()
            numbers = [int(f.name.split(".")[-2]) for f in _data_files(self.path)]
            self._version = max(numbers, default=0) + 1
        except BaseException:
            self._lock.close()
            raise
        return self

    def array(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> ArrayFile:
        """Begin an array that is appended to piece by piece."""
        if not re.fullmatch(r"[A-Za-z_][\w-]*", name):
            raise ValueError(f"{name!r} cannot be the name of an array: use letters, digits, - and _")
        file = ArrayFile(self.path / f"{name}.{self._version}.npy", dtype, shape)
        self._open.append((name, file))
        return file

    def write(self, name: str, array: Tensor | np.ndarray[Any, Any]) -> None:
        tensor = array if isinstance(array, Tensor) else torch.from_numpy(array)
        self.array(name, tensor.dtype, tuple(tensor.shape)).append(tensor)

    def side_file(self, name: str) -> Path:
        """Where to write a Parquet file that is to stand beside the arrays; close it before the `with` block ends."""
        self._side[name] = self.path / f"{name}.{self._version}.parquet"
        return self._side[name]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        complete = False
        try:
            if kind is None:
                self._commit()
                complete = True
        finally:
            if not complete:
                self._abandon()
            self._lock.close()
            if not complete:
                with suppress(OSError):  # it holds an older version, or another writer's files
                    self.path.rmdir()

    def _commit(self) -> None:
        for name, file in self._open:
            self._arrays[name] = file.close()
        files = {name: _describe(path) for name, path in self._side.items()}
        listed = {"info": self.info, "arrays": self._arrays, "files": files}
        meta = {"format": self.kind.format, "kind": self.kind.noun, **listed}
        self._aside.write_text(json.dumps(sealed(meta), indent=1), encoding="utf-8")
        put_in_place(self._aside, self._meta)
        self._open, self._side = [], {}  # they belong to the directory now, whatever happens next
        sync(self.path)
        current = {entry["file"] for entry in (*self._arrays.values(), *files.values())}
        for old in _data_files(self.path):
            if old.name not in current:
                old.unlink(missing_ok=True)

    def _abandon(self) -> None:
        for _, file in self._open:
            file.abandon()
            file.path.unlink(missing_ok=True)
        for path in self._side.values():
            path.unlink(missing_ok=True)
        if not self._meta.exists():  # what a writer before this one left, when it was killed
            for left in _data_files(self.path):
                left.unlink(missing_ok=True)
            self._remove_folders()
        self._aside.unlink(missing_ok=True)

    def _remove_folders(self) -> None:
        """Remove the folders within, of a directory that is not complete."""
        for folder in self.path.iterdir():
            if self.kind.folders and re.fullmatch(self.kind.folders, folder.name):
                shutil.rmtree(folder)


class ArrayReader:
    """The arrays of a dataset directory, or of one of another kind, memory-mapped on demand."""

    def __init__(self, path: Path, *, kind: Kind = DATASET) -> None:
        self.path, self.kind, self._meta = path, kind, path / kind.meta
        meta, other = self._meta, kind_of(path)
        if not path.exists():
            raise FileNotFoundError(f"there is no {kind.noun} at {path}")
        if other is not None and other != kind:
            raise ValueError(f"{path} is a {other.noun}, not a {kind.noun}: {other.use.format(path=path)}")
        if not meta.exists():
            interrupted = meta.with_name(f"{kind.meta}.new").exists()
            reason = "its writing was interrupted" if interrupted else f"it has no {kind.meta}"
            raise FileNotFoundError(f"{path} is not a {kind.noun}: {reason}")
        self._text = meta.read_bytes()
        try:
            content = unsealed(self._text)
            version, self.info, self._arrays = content["format"], content["info"], content["arrays"]
            self._files: dict[str, dict[str, Any]] = content.get("files", {})
        except KeyError as error:
            raise ValueError(f"{meta} is damaged: {error} is missing; {self._remedy}") from None
        except ValueError as error:
            raise ValueError(f"{meta} is damaged: {error}; {self._remedy}") from None
        if content.get("kind", DATASET.noun) != kind.noun:
            raise ValueError(f"{path} is a {content['kind']}, not a {kind.noun}")
        if version != kind.format:
            raise ValueError(f"{path} has format {version}; this version of Headrace reads format {kind.format}")
        if not all(isinstance(table, dict) for table in (self.info, self._arrays, self._files)):
            raise ValueError(f"{meta} is damaged: it lists no arrays")

    @property
    def is_replaced(self) -> bool:
        """Whether the directory was saved over since: files of the version that this reads may be gone."""
        try:
            return self._meta.read_bytes() != self._text
        except OSError:
            return False

    @property
    def names(self) -> list[str]:
        return list(self._arrays)

    @property
    def files(self) -> dict[str, Path]:
        """Side files by name: "ids" is the id map of an import."""
        return {name: self._file(entry) for name, entry in self._files.items()}

    def open(self, name: str) -> Tensor:
        entry = self._arrays[name]
        file = self._file(entry)
        try:
            shape, dtype = tuple(entry["shape"]), getattr(torch, entry["dtype"])
            assert isinstance(dtype, torch.dtype)
        except (KeyError, TypeError, AttributeError, AssertionError):
            raise ValueError(f"{self._meta} is damaged: it does not say what {file.name} holds") from None
        try:
            # Copy-on-write: a user may change the tensor, the file stays as it is.
            mapped = np.load(file, mmap_mode="c") if np.prod(shape) else np.load(file)
        except Exception as error:  # numpy has no one error for a file it cannot read
            raise ValueError(f"{file} is damaged: {error}") from None
        if mapped.shape != shape or mapped.dtype != stored_dtype(dtype):
            raise ValueError(f"{file} holds {mapped.dtype} {mapped.shape}, but {self.kind.meta} says {dtype} {shape}")
        return torch.from_numpy(mapped).view(dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(self._file(entry).stat().st_size for entry in (*self._arrays.values(), *self._files.values()))

    def verify(self, when: bool | Literal["small"] = True) -> None:
        """Read every file and compare it with its checksum; with "small" if all files together are at most 256 MiB."""
        if not when or (when == "small" and self.nbytes > _SMALL):
            return
        for entry in (*self._arrays.values(), *self._files.values()):
            file = self._file(entry)
            with open(file, "rb") as f:
                if _crc32(f) != entry.get("crc32"):
                    raise ValueError(f"{file} is damaged: its checksum is not the one in {self.kind.meta}; {self._remedy}")

    @property
    def _remedy(self) -> str:
        return f"restore the {self.kind.noun} from a copy, or make it again"

    def _file(self, entry: dict[str, Any]) -> Path:
        name = entry.get("file") if isinstance(entry, dict) else entry
        if not isinstance(name, str) or not _DATA_FILE.fullmatch(name):
            raise ValueError(f"{self._meta} is damaged: {name!r} is no file of a {self.kind.noun}")
        file = self.path / name
        if not file.exists():
            raise ValueError(f"{self.path} is damaged: {name} is missing")
        return file


def read_version(path: Path, work: Callable[[ArrayReader], T], *, kind: Kind = DATASET) -> T:
    """Return `work` of the arrays of one version; of a newer one if the directory was saved over meanwhile."""
    while True:
        reader = ArrayReader(path, kind=kind)
        try:
            return work(reader)
        except (OSError, ValueError):
            if not reader.is_replaced:
                raise


def _crc32(f: BinaryIO) -> int:
    crc = 0
    while piece := f.read(_CHUNK):
        crc = zlib.crc32(piece, crc)
    return crc


def _describe(side_file: Path) -> dict[str, object]:
    """Flush a side file to the disk, and describe it for meta.json."""
    sync(side_file)
    with open(side_file, "rb") as f:
        return {"file": side_file.name, "crc32": _crc32(f)}


def _data_files(path: Path) -> Iterator[Path]:
    return (f for f in path.iterdir() if _DATA_FILE.fullmatch(f.name)) if path.is_dir() else iter(())


def _is_ours(path: Path, kind: Kind) -> bool:
    """Whether a directory is empty, of this kind, or what an interrupted save of one left behind. Anything else is not touched."""
    if (path / kind.meta).exists():
        try:
            content = json.loads((path / kind.meta).read_text(encoding="utf-8"))
            return bool({"format", "info", "arrays"} <= content.keys()) and kind_of(path) == kind
        except (ValueError, AttributeError):
            return False
    aside, names = f"{kind.meta}.new", {file.name for file in path.iterdir()} - {_LOCK}
    known = re.compile(f"{re.escape(aside)}|{_DATA_FILE.pattern}|{kind.folders or aside}")
    return not names or (aside in names and all(known.fullmatch(name) for name in names))
