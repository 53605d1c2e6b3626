"""Raw ids to node ids: as they are, by a table over their range, or by merged runs, whichever fits the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.outside.runs import Ranks
from headrace.graph.ingest.outside.scratch import Array, Scratch

_CHUNK = 1 << 20


class IdMap:
    """Groups of raw ids, added in order; once finished, the node ids of each group.

    A node's id is its rank among the distinct raw ids, integers by value and texts by their UTF-8 bytes; with
    `num_nodes`, raw ids are node ids already.
    """

    def __init__(self, folder: Scratch, budget: Budget, *, text: bool, num_nodes: int | None) -> None:
        self._folder, self._budget, self._text = folder, budget, text
        self._groups = None if text else folder.spool("ids")
        self._ranks = Ranks(folder, text=True) if text else None
        self._least, self._most = 0, -1
        self._rank_of: Array | None = None
        self._seen: Array | None = None
        self._as_they_are = num_nodes is not None
        self.num_nodes = num_nodes or 0
        self.groups = 0

    @property
    def has_map(self) -> bool:
        return not self._as_they_are

    @property
    def is_text(self) -> bool:
        return self._text

    def add(self, ids: Any) -> int:
        """One group: an int64 array, or an Arrow array of texts; returns its number."""
        self.groups += 1
        if self._ranks is not None:
            self._ranks.add(ids)
            return self.groups - 1
        assert self._groups is not None
        least, most = (int(ids.min()), int(ids.max())) if len(ids) else (0, -1)
        if len(ids):
            empty = self._least > self._most
            self._least, self._most = (least, most) if empty else (min(self._least, least), max(self._most, most))
        small = np.iinfo(np.int32).min <= least and most <= np.iinfo(np.int32).max
        self._groups.append(ids.astype(np.int32) if small else ids)
        return self.groups - 1

    def finish(self, progress: Callable[[int, int], None]) -> None:
        """Number the ids. After this no group can be added."""
        if self._as_they_are:
            return
        if self._ranks is None:
            assert self._groups is not None
            spread = self._most - self._least + 1
            if spread * 6 <= self._budget.table and spread <= np.iinfo(np.int32).max:
                self._make_table(progress)
                return
            self._ranks = Ranks(self._folder, text=False)
            for number in range(len(self._groups)):
                self._ranks.add(pa.array(self._groups.read(number).astype(np.int64)))
                progress(number + 1, 2 * len(self._groups))
            self._groups.close()
        self._ranks.merge(self._budget.table, progress)
        self.num_nodes = self._ranks.total

    def _make_table(self, progress: Callable[[int, int], None]) -> None:
        assert self._groups is not None
        seen = np.zeros(self._most - self._least + 1, bool)
        for number in range(len(self._groups)):
            seen[self._places(number)] = True
            progress(number + 1, len(self._groups))
        ranks = np.empty(len(seen), np.int32)
        for start in range(0, len(seen), _CHUNK):
            counted = np.cumsum(seen[start : start + _CHUNK], dtype=np.int32)
            ranks[start : start + _CHUNK] = counted + np.int32(self.num_nodes - 1)
            self.num_nodes += int(counted[-1])
        self._rank_of, self._seen = ranks, seen

    def _places(self, number: int) -> Array:
        assert self._groups is not None
        ids = self._groups.read(number)
        narrow = np.iinfo(np.int32).min <= self._least and self._most <= np.iinfo(np.int32).max
        if not narrow:
            ids = ids.astype(np.int64, copy=False)
        ids -= ids.dtype.type(self._least)
        return ids

    def group(self, number: int) -> Array:
        """The node ids of one group, in the order they were added."""
        if self._ranks is not None:
            return self._ranks.group(number)
        if self._rank_of is not None:
            return self._rank_of[self._places(number)]
        assert self._groups is not None
        return self._groups.read(number)

    def distinct(self) -> Iterator[Any]:
        """The raw id of every node, in order, as Arrow arrays."""
        if self._ranks is not None:
            yield from self._ranks.distinct()
        elif self._seen is not None:
            for start in range(0, len(self._seen), _CHUNK):
                yield pa.array(np.flatnonzero(self._seen[start : start + _CHUNK]) + np.int64(start + self._least))
