"""`TimedEdges`: edges put in order of time, sorted in pieces that fit the memory. Edges of one time keep their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from headrace.graph.ingest.edges.spooled import Piece, SpooledEdges
from headrace.graph.ingest.idmap import IdMap
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.outside.scratch import Array, Scratch, Spool
from headrace.graph.ingest.partition import Limits, partition

_BYTES = 320  # of an edge while it is dealt or sorted, its features (counted apart) left out


class TimedEdges:
    """The edges of every split in order of time: times are ranked as ids are, and edges dealt into ranges of ranks."""

    def __init__(self, edges: SpooledEdges, folder: Scratch, budget: Budget, threads: int) -> None:
        self._edges, self._folder, self._budget, self._threads = edges, folder, budget, threads
        self._columns: dict[int, dict[str, Spool]] = {}
        self._widths: dict[str, int] = {}

    def count(self, split: int = 0) -> int:
        return self._edges.count(split)

    def sort(self, progress: Callable[[int, int], None]) -> None:
        """Sort all splits; the edges as they were read are not needed after it."""
        ranks = IdMap(self._folder, self._budget.shared(2), text=False, num_nodes=None)  # the ids' tables are held too
        for times in self._edges.times():
            ranks.add(_sortable(times))
        ranks.finish(lambda done, total: None)
        pa.default_memory_pool().release_unused()
        done, total = 0, self._edges.total
        for split in sorted(set(self._edges.splits())):
            for sorted_piece in self._ranges(split, ranks):
                spools = self._columns.setdefault(split, {})
                for name, values in sorted_piece.items():
                    self._widths[name] = values.shape[1] if values.ndim == 2 else 0
                    if name not in spools:
                        spools[name] = self._folder.spool(f"timed-{name}")
                    spools[name].append(values)
                done += len(sorted_piece["src"])
                progress(done, total)

    def _ranges(self, split: int, ranks: IdMap) -> Iterator[Piece]:
        names: list[str] = []

        def ranked() -> Iterator[tuple[Array, ...]]:
            groups = [number for number, of in enumerate(self._edges.splits()) if of == split]
            for number, piece in zip(groups, self._edges.pieces(split), strict=True):
                names[:] = list(piece)
                ends = {name: piece[name].astype(np.int64, copy=False) for name in ("src", "dst")}  # one type in all groups
                yield (ranks.group(number), *(piece | ends).values())

        first = next(self._edges.pieces(split))
        each = _BYTES + 8 * (first["features"].shape[1] * first["features"].itemsize if "features" in first else 0)
        limit = self._budget.items(each)
        ranges = partition(
            ranked,
            0,
            ranks.num_nodes,
            key=0,
            limits=Limits(rows=limit, keys=max(limit, 1 << 16)),
            folder=self._folder,
            threads=self._threads,
        )
        for part in ranges:
            pieces = part.pieces() if part.rows else iter(())
            if part.high - part.low == 1:  # one time: in order as it is, however long
                for _, *columns in pieces:
                    yield dict(zip(names, columns, strict=True))
                continue
            parts = list(pieces)
            if parts:
                order = np.argsort(np.concatenate([stretch[0] for stretch in parts]), kind="stable")
                ordered: Piece = {}
                for at, name in enumerate(names, 1):  # a column at a time: no second copy of them all
                    ordered[name] = np.concatenate([stretch[at] for stretch in parts])[order]
                del parts, order
                yield ordered
                del ordered

    def pieces(self, split: int = 0) -> Iterator[Piece]:
        """The edges of a split, in order of time."""
        spools = self._columns.get(split, {})
        for number in range(len(spools["src"]) if spools else 0):
            piece = {name: spool.read(number) for name, spool in spools.items()}
            yield {name: v.reshape(-1, self._widths[name]) if self._widths[name] else v for name, v in piece.items()}


def _sortable(times: Array) -> Array:  # int64 or float64 -> int64
    """Integers in the order of the times: of floats, their bits, those of negative ones turned around."""
    if times.dtype != np.float64:
        return times
    bits = (times + 0.0).view(np.int64)  # -0.0 becomes 0.0
    return np.where(bits < 0, bits ^ np.int64(np.iinfo(np.int64).max), bits)
