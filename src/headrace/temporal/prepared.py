"""`PreparedBatches`: batches that are made once, written to a directory, and read from there by later epochs and runs."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace._files import replaced
from headrace._sealed import read_sealed, write_sealed
from headrace.graph.saved.fingerprint import fingerprint
from headrace.sample import Block
from headrace.temporal.batch import EventBatch
from headrace.temporal.batches import Asked, EventBatches

_TYPES = ("int32", "int64", "float64", "bool")
_ALIGNED = 8


class PreparedBatches:
    """What `EventBatches` makes, to the bit, from one file an epoch: batch after batch, with an index and a checksum of each.

    `prepare` writes the epochs that the directory lacks, each whole or not at all, holding one batch at a time; `make` reads by
    memory map. A directory of other data or other options is refused by name of what differs.
    """

    def __init__(self, batches: EventBatches, folder: Path, options: dict[str, Any]) -> None:
        self.batches, self.folder, self.starts, self.cuts = batches, folder, batches.starts, batches.cuts
        self._open: dict[int, tuple[np.memmap[Any, Any], dict[tuple[int, int], tuple[int, int, int]]]] = {}
        stream = batches.stream
        data = {name: fingerprint(getattr(stream, name)) for name in ("src", "dst", "time")}
        self._check(data | json.loads(json.dumps(options)))

    @property
    def num_batches(self) -> int:
        return self.batches.num_batches

    def _check(self, ours: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "meta.json"
        if not path.exists():
            if any(self.folder.iterdir()):
                raise ValueError(f"{self.folder} holds other files and no batches: give prepared a directory of its own")
            write_sealed(path, ours)
            return
        theirs = read_sealed(path, self._remedy)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                raise ValueError(
                    f"{self.folder} was prepared with {name} = {theirs.get(name)}, and this run has {ours.get(name)}: give "
                    "prepared another directory, or delete this one"
                )

    @property
    def _remedy(self) -> str:
        return f"delete {self.folder}, and it is prepared again"

    def prepare(self, epoch: int, asked: Iterable[tuple[int, int]], *, memory: bool = True, negatives: bool = True) -> None:
        """Write epoch `epoch` unless it is there: of each (batch, first event that its memory has seen) asked for."""
        index = self.folder / f"epoch-{epoch}.json"
        if index.exists():
            return
        places, begin = [], 0
        with replaced(index.with_suffix(".bin"), contended=True) as aside, open(aside, "wb") as file:
            for batch, since in asked:
                data = _packed(self.batches.make(batch, epoch, since=since, memory=memory, negatives=negatives))
                file.write(data)
                places.append((batch, since, begin, len(data), zlib.crc32(data)))
                begin += len(data)
        write_sealed(index, {"batches": places})

    def make(self, index: int, epoch: int, *, since: int = 0, memory: bool = True, negatives: bool = True) -> EventBatch:
        """As `EventBatches.make`, of an epoch that was prepared."""
        if epoch not in self._open:
            path = self.folder / f"epoch-{epoch}.json"
            places = read_sealed(path, self._remedy)["batches"]
            found = {(batch, first): (begin, size, crc) for batch, first, begin, size, crc in places}
            self._open[epoch] = np.memmap(path.with_suffix(".bin"), np.uint8, "r"), found
        held, found = self._open[epoch]
        begin, size, crc = found[index, since]
        data = held[begin : begin + size].tobytes()
        if zlib.crc32(data) != crc:
            raise ValueError(f"batch {index} of epoch {epoch} in {self.folder} is damaged: {self._remedy}")
        return _unpacked(data)

    def make_all(self, asked: Sequence[Asked], *, memory: bool = True, negatives: bool = True) -> list[EventBatch]:
        """As `EventBatches.make_all`, of epochs that were prepared."""
        return [self.make(each.batch, each.epoch, since=each.since, memory=memory, negatives=negatives) for each in asked]

    def forget(self) -> None:
        """Close the epochs that were read."""
        self._open.clear()


def _packed(batch: EventBatch) -> bytes:
    """Header (its length, then JSON), then arrays; rows of edges once, as those of the last block."""
    plain: dict[str, Any] = {}
    arrays: list[np.ndarray[Any, Any]] = []
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            plain[field.name] = _described(value, arrays)
        elif field.name == "blocks":
            last = batch.blocks[-1].indptr if batch.blocks else torch.zeros(1, dtype=torch.int64)
            plain["blocks"] = [_described(last, arrays), [(block.num_dst, block.num_src) for block in batch.blocks]]
        else:
            plain[field.name] = value
    header = json.dumps(plain).encode()
    header += b" " * (-len(header) % _ALIGNED)
    pieces = [np.int64(len(header)).tobytes(), header]
    for array in arrays:
        pieces += [array.tobytes(), b"\0" * (-array.nbytes % _ALIGNED)]
    return b"".join(pieces)


def _described(value: Tensor, arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
    """Put an array among those to write; returns its type, its type there (int32 while its numbers fit) and its length."""
    array = value.numpy()
    name = array.dtype.name
    if name not in _TYPES:
        raise TypeError(f"a batch holds {name}, and prepared batches have only {', '.join(_TYPES)}")
    if name == "int64" and (not array.size or np.abs(array).max() < 2**31):
        array = array.astype(np.int32)
    arrays.append(array)
    return [name, array.dtype.name, len(array)]


def _unpacked(data: bytes) -> EventBatch:
    (size,) = np.frombuffer(data, np.int64, 1)
    plain = json.loads(data[8 : 8 + size])
    at = 8 + int(size)

    def next_array(described: list[Any]) -> Tensor:
        nonlocal at
        name, stored, length = described
        array = np.frombuffer(data, stored, length, at).astype(name)
        at += -(-length * np.dtype(stored).itemsize // _ALIGNED) * _ALIGNED
        return torch.from_numpy(array)

    values: dict[str, Any] = {}
    for field in fields(EventBatch):
        value = plain[field.name]
        if field.name == "blocks":
            indptr = next_array(value[0])
            roots = value[1][0][0] if value[1] else 0
            values["blocks"] = tuple(Block(indptr[: rows + 1], torch.arange(roots, nodes), nodes) for rows, nodes in value[1])
        else:
            values[field.name] = next_array(value) if isinstance(value, list) else value
    return EventBatch(**values)
