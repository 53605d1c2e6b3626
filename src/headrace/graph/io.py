"""The dataset directory: `meta.json`, one `.npy` file per array, and side files such as the id map of an import.

`meta.json` names every file with its shape, type and checksum, and is written last, aside, and renamed into place: until
then the directory is what it was. Files of a new version never have the names of the old ones (they carry its number), so a
reader of the old version keeps its memory maps, and a dataset may be saved over the directory it was opened from.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from headrace._files import Lock, put_in_place, sync
from headrace._sealed import sealed, unsealed

FORMAT = 1
_META, _ASIDE, _LOCK = "meta.json", "meta.json.new", ".lock"
_PATIENCE = 60.0  # seconds that a writer waits for another one
_CHUNK = 16 << 20
T = TypeVar("T")
_REMEDY = "restore the dataset from a copy, or make it again"
_DATA_FILE = re.compile(r"[A-Za-z_][\w-]*\.\d+\.(npy|parquet)")


class ArrayFile:
    """One array written front to back, in pieces, without being held in memory."""

    def __init__(self, path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        stored = _stored_dtype(dtype)
        header = BytesIO()
        description = {"descr": npy.dtype_to_descr(stored), "fortran_order": False, "shape": shape}
        npy.write_array_header_2_0(header, description)  # type: ignore[no-untyped-call]
        self._left = int(np.prod(shape, dtype=np.int64)) * stored.itemsize
        self._crc = zlib.crc32(header.getbuffer())
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 - closed by close()
        self._file.write(header.getbuffer())

    def append(self, piece: Tensor | np.ndarray[Any, Any]) -> None:
        data = _as_stored(piece).reshape(-1).view(np.uint8).data
        if len(data) > self._left:
            raise ValueError(f"{self.path.name} was declared with shape {self.shape}, and more was written")
        for start in range(0, len(data), _CHUNK):
            part = data[start : start + _CHUNK]
            self._crc = zlib.crc32(part, self._crc)
            self._file.write(part)
        self._left -= len(data)

    def close(self, *, sync: bool = True) -> dict[str, object]:
        """Flush to the disk (unless nobody needs it there after this process), and describe the file for meta.json."""
        if self._left:
            self._file.close()
            raise ValueError(f"{self.path.name} was declared with shape {self.shape}; {self._left} bytes are missing")
        self._file.flush()
        if sync:
            os.fsync(self._file.fileno())
        self._file.close()
        return {
            "file": self.path.name,
            "dtype": str(self.dtype).removeprefix("torch."),
            "shape": list(self.shape),
            "crc32": self._crc,
        }

    def abandon(self) -> None:
        with suppress(OSError):  # what is left to write finds no room either
            self._file.close()


class DatasetWriter:
    """Writes a dataset directory; what was there before is replaced only when the `with` block ends well."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.info: dict[str, object] = {}
        self._arrays: dict[str, dict[str, object]] = {}
        self._open: list[tuple[str, ArrayFile]] = []
        self._side: dict[str, Path] = {}
        if self.path.exists() and not self.path.is_dir():
            raise FileExistsError(f"{self.path} is a file: a dataset is a directory")
        self._check()

    def _check(self) -> None:
        if self.path.exists() and not _is_ours(self.path):
            raise FileExistsError(f"{self.path} holds other files and is not a dataset: choose another directory")

    def __enter__(self) -> DatasetWriter:
        busy, remedy = f"{self.path} is being written", "wait until that has ended, or choose another directory"
        while True:
            with suppress(FileNotFoundError):  # another writer gave up, and removed the empty directory
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock = Lock(self.path / _LOCK, busy=busy, remedy=remedy, seconds=_PATIENCE)
                break
        try:
            self._check()
            (self.path / _ASIDE).touch()  # marks what an interrupted save leaves behind as a dataset's
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
        meta = {"format": FORMAT, "info": self.info, "arrays": self._arrays, "files": files}
        aside = self.path / _ASIDE
        aside.write_text(json.dumps(sealed(meta), indent=1), encoding="utf-8")
        put_in_place(aside, self.path / _META)
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
        if not (self.path / _META).exists():  # what a writer before this one left, when it was killed
            for left in _data_files(self.path):
                left.unlink(missing_ok=True)
        (self.path / _ASIDE).unlink(missing_ok=True)


class ArrayReader:
    """The arrays of a dataset directory, memory-mapped on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        meta = path / _META
        if not path.exists():
            raise FileNotFoundError(f"there is no dataset at {path}")
        if not meta.exists():
            reason = "its writing was interrupted" if (path / _ASIDE).exists() else "it has no meta.json"
            raise FileNotFoundError(f"{path} is not a dataset: {reason}")
        self._text = meta.read_bytes()
        try:
            content = unsealed(self._text)
            version, self.info, self._arrays = content["format"], content["info"], content["arrays"]
            self._files: dict[str, dict[str, Any]] = content.get("files", {})
        except KeyError as error:
            raise ValueError(f"{meta} is damaged: {error} is missing; {_REMEDY}") from None
        except ValueError as error:
            raise ValueError(f"{meta} is damaged: {error}; {_REMEDY}") from None
        if version != FORMAT:
            raise ValueError(f"{path} has format {version}; this version of Headrace reads format {FORMAT}")
        if not all(isinstance(table, dict) for table in (self.info, self._arrays, self._files)):
            raise ValueError(f"{meta} is damaged: it lists no arrays")

    @property
    def is_replaced(self) -> bool:
        """Whether the directory was saved over since: files of the version that this reads may be gone."""
        try:
            return (self.path / _META).read_bytes() != self._text
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
            raise ValueError(f"{self.path / _META} is damaged: it does not say what {file.name} holds") from None
        try:
            # Copy-on-write: a user may change the tensor, the file stays as it is.
            mapped = np.load(file, mmap_mode="c") if np.prod(shape) else np.load(file)
        except Exception as error:  # numpy has no one error for a file it cannot read
            raise ValueError(f"{file} is damaged: {error}") from None
        if mapped.shape != shape or mapped.dtype != _stored_dtype(dtype):
            raise ValueError(f"{file} holds {mapped.dtype} {mapped.shape}, but meta.json says {dtype} {shape}")
        return torch.from_numpy(mapped).view(dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(self._file(entry).stat().st_size for entry in (*self._arrays.values(), *self._files.values()))

    def verify(self) -> None:
        """Read every file and compare it with its checksum."""
        for entry in (*self._arrays.values(), *self._files.values()):
            file = self._file(entry)
            with open(file, "rb") as f:
                if _crc32(f) != entry.get("crc32"):
                    raise ValueError(f"{file} is damaged: its checksum is not the one in meta.json; {_REMEDY}")

    def _file(self, entry: dict[str, Any]) -> Path:
        name = entry.get("file") if isinstance(entry, dict) else entry
        if not isinstance(name, str) or not _DATA_FILE.fullmatch(name):
            raise ValueError(f"{self.path / _META} is damaged: {name!r} is no file of a dataset")
        file = self.path / name
        if not file.exists():
            raise ValueError(f"{self.path} is damaged: {name} is missing")
        return file


def read_version(path: Path, work: Callable[[ArrayReader], T]) -> T:
    """Return `work` of the arrays of one version; of a newer one if the directory was saved over meanwhile."""
    while True:
        reader = ArrayReader(path)
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


def _stored_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    if dtype == torch.bfloat16:  # numpy has no such type: the bits are kept
        return np.dtype(np.int16)
    return torch.empty(0, dtype=dtype).numpy().dtype


def _as_stored(piece: Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if isinstance(piece, Tensor):
        piece = piece.detach().cpu().contiguous()
        piece = (piece.view(torch.int16) if piece.dtype == torch.bfloat16 else piece).numpy()
    return np.ascontiguousarray(piece)


def _data_files(path: Path) -> Iterator[Path]:
    return (f for f in path.iterdir() if _DATA_FILE.fullmatch(f.name)) if path.is_dir() else iter(())


def _is_ours(path: Path) -> bool:
    """Whether a directory is empty, a dataset, or what an interrupted save of one left behind. Anything else is not touched."""
    if (path / _META).exists():
        try:
            return bool({"format", "info", "arrays"} <= json.loads((path / _META).read_text(encoding="utf-8")).keys())
        except (ValueError, AttributeError):
            return False
    files = {file.name for file in path.iterdir()} - {_LOCK}
    return not files or (_ASIDE in files and all(name == _ASIDE or _DATA_FILE.fullmatch(name) for name in files))
