"""Sorted runs of keys and their merge: the rank of every key among all distinct ones, in bounded memory.

A group of keys becomes a sorted run of its distinct keys and, for each key, its place in the run. The merge walks all
runs at once; since a run and the ranks of its keys rise together, ranks are written run by run, front to back, and no key
ever has to be looked up. A key that is everywhere (a hub) costs one entry per run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.graph.ingest.outside.scratch import Array, Scratch

_LEAST_CHUNK = 64


class KeyRuns:
    """Sorted arrays of keys (int64 or text) on disk, any stretch of which can be read."""

    def __init__(self, folder: Scratch, name: str, text: bool) -> None:
        self._values = folder.spool(f"{name}.values")
        self._offsets = folder.spool(f"{name}.offsets") if text else None

    def __len__(self) -> int:
        return len(self._values if self._offsets is None else self._offsets)

    def append(self, keys: Any) -> None:
        if self._offsets is None:
            self._values.append(keys.to_numpy())
            return
        offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1]
        data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
        self._offsets.append(offsets - offsets[0])
        self._values.append(data)

    def size(self, run: int) -> int:
        return self._values.size(run) if self._offsets is None else self._offsets.size(run) - 1

    def read(self, run: int, start: int = 0, count: int | None = None) -> Any:
        count = self.size(run) - start if count is None else min(count, self.size(run) - start)
        if self._offsets is None:
            return pa.array(self._values.read(run, start, count))
        offsets = self._offsets.read(run, start, count + 1)
        data = self._values.read(run, int(offsets[0]), int(offsets[-1] - offsets[0]))
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets - offsets[0]), pa.py_buffer(data))

    def bytes_each(self) -> int:
        """Bytes of an average key."""
        keys = sum(self.size(run) for run in range(len(self)))
        return -(-sum(self._values.size(run) for run in range(len(self))) // max(1, keys)) if self._offsets else 8


def sorted_distinct(keys: Any) -> tuple[Any, Array]:
    """The distinct keys in order, and the place among them of every key.  # [n] -> [d], [n] int32"""
    encoded = keys.dictionary_encode()
    order = pc.array_sort_indices(encoded.dictionary)
    places = np.empty(len(order), np.int32)
    places[order.to_numpy()] = np.arange(len(order), dtype=np.int32)
    return encoded.dictionary.take(order), places[encoded.indices.to_numpy()]


class Ranks:
    """Groups of keys, the rank of each key among all, and all distinct keys in order."""

    def __init__(self, folder: Scratch, text: bool) -> None:
        self._runs = KeyRuns(folder, "runs", text)
        self._places = folder.spool("places")
        self._ranks = folder.spool("ranks")
        self._ranks_of: list[list[int]] = []
        self._distinct = KeyRuns(folder, "distinct", text)
        self.total = 0

    def add(self, keys: Any) -> None:
        distinct, places = sorted_distinct(keys)
        self._runs.append(distinct)
        self._places.append(places)
        self._ranks_of.append([])

    def merge(self, memory: int, progress: Callable[[int, int], None]) -> None:
        """Rank all keys, holding a stretch of every run at a time."""
        runs = len(self._runs)
        chunk = max(_LEAST_CHUNK, memory // max(1, runs) // (4 * self._runs.bytes_each() + 64))
        entries = sum(self._runs.size(run) for run in range(runs))
        dtype = np.int32 if entries <= np.iinfo(np.int32).max else np.int64
        merged = 0
        ahead: dict[int, Any] = {}
        read = [0] * runs
        for run in range(runs):
            self._refill(run, ahead, read, chunk)
        while ahead:
            # Up to the least of the last keys held, every run's keys are in memory.
            open_ends = [keys[-1] for run, keys in ahead.items() if read[run] < self._runs.size(run)]
            until = min(open_ends, key=_order) if open_ends else None
            taken = [(run, len(keys) if until is None else _count_until(keys, until)) for run, keys in ahead.items()]
            taken = [(run, count) for run, count in taken if count]
            distinct, places = sorted_distinct(pa.concat_arrays([ahead[run].slice(0, count) for run, count in taken]))
            ranks = (places + np.int64(self.total)).astype(dtype)
            at = 0
            for run, count in taken:
                self._ranks_of[run].append(self._ranks.append(ranks[at : at + count]))
                at += count
                ahead[run] = ahead[run].slice(count)
                if not len(ahead[run]):
                    self._refill(run, ahead, read, chunk)
            self._distinct.append(distinct)
            merged += len(places)
            progress(merged, entries)
            self.total += len(distinct)

    def _refill(self, run: int, ahead: dict[int, Any], read: list[int], chunk: int) -> None:
        keys = self._runs.read(run, read[run], chunk)
        read[run] += len(keys)
        if len(keys):
            ahead[run] = keys
        else:
            ahead.pop(run, None)

    def group(self, number: int) -> Array:
        """The ranks of the keys of one group, in their order."""
        pieces = [self._ranks.read(piece) for piece in self._ranks_of[number]]
        places = self._places.read(number)
        return np.concatenate(pieces)[places] if pieces else places

    def distinct(self) -> Any:
        """All distinct keys in order, in pieces."""
        return (self._distinct.read(run) for run in range(len(self._distinct)))


def _order(key: Any) -> Any:
    value = key.as_py()
    return value.encode() if isinstance(value, str) else value


def _count_until(keys: Any, until: Any) -> int:
    """How many of the sorted keys are not after `until`."""
    low, high, last = 0, len(keys), _order(until)
    while low < high:
        middle = (low + high) // 2
        if _order(keys[middle]) <= last:
            low = middle + 1
        else:
            high = middle
    return low
