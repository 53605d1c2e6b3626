"""`SpooledEdges`: edges as they were read, on disk in groups, waiting for their ids to be numbered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.graph.ingest.files.columns import clean
from headrace.graph.ingest.idmap import IdMap
from headrace.graph.ingest.inputs import EdgeInput, Inputs
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.outside.scratch import Array, Scratch, Spool
from headrace.graph.ingest.problems import BadRows, IngestError

Progress = Callable[[str, int, int | None], None]
Piece = dict[str, Array]  # "src" and "dst", and of "relation", "weight", "time" and "features" what there is

_TEXT_KEY_BYTES, _TEXT_COPIES = 80, 5  # what numbering texts needs: per key, and times their own bytes


class Edges(Protocol):
    """Edges on disk, in their order, piece by piece."""

    def pieces(self, split: int = 0) -> Iterator[Piece]: ...
    def count(self, split: int = 0) -> int: ...


@dataclass(frozen=True)
class _Group:
    """Edges that were read together: where their ids are, and their split."""

    size: int
    split: int
    kind: tuple[str, str, str]
    ids: tuple[int, int]  # groups of the sources and of the targets; the same where both are of one type


class SpooledEdges:
    """Edges on disk in groups: raw ids with the id maps, sources before targets, and what else is known of them beside."""

    def __init__(
        self, inputs: Inputs, ids: Mapping[str, IdMap], relations: IdMap | None, folder: Scratch, at_once: int, budget: Budget
    ) -> None:
        self._inputs, self._ids, self._relations = inputs, ids, relations
        self._at_once, self._budget = at_once, budget
        self._beside: dict[str, Spool] = {name: folder.spool(name) for name in ("weight", "time", "features") if _has(inputs, name)}
        self._groups: list[_Group] = []
        self._last_time: dict[int, Any] = {}
        self.in_order = True  # of time, within every split

    @property
    def total(self) -> int:
        """Edges of all splits."""
        return sum(group.size for group in self._groups)

    def count(self, split: int = 0) -> int:
        return sum(group.size for group in self._groups if group.split == split)

    def read(self, bad: BadRows, tell: Progress) -> None:
        """Read every table once."""
        before = 0
        for read in self._inputs.edges:
            held: list[list[Any]] = []
            size = waiting = 0
            for batch in _interruptible(read):
                columns, _, wrong = clean(batch, read.wanted)
                bad.add(read.table, wrong)
                if len(columns[0]):
                    fresh, weighs = len(columns[0]), sum(c.nbytes for c in columns[:2])
                    if held and (waiting + fresh > self._at_once or self._too_much(read, waiting + fresh, size + weighs)):
                        self._flush(read, held)
                        held, size, waiting = [], 0, 0
                    held.append(columns)
                    size, waiting = size + weighs, waiting + fresh
                tell("reading edges", before + read.table.done, self._inputs.size)
            before += read.table.size
            if held:
                self._flush(read, held)

    def _too_much(self, read: EdgeInput, edges: int, size: int) -> bool:
        text = self._ids[read.kind[0]].is_text or self._ids[read.kind[2]].is_text
        return text and 2 * edges * _TEXT_KEY_BYTES + size * _TEXT_COPIES > self._budget.working // 2

    def _flush(self, read: EdgeInput, held: list[list[Any]]) -> None:
        source, target = (self._ids[read.kind[at]] for at in (0, 2))
        sources, targets = ([columns[at] for columns in held] for at in (0, 1))
        if source is target:
            both = source.add(_joined(sources + targets, source.is_text))
            ids = (both, both)
        else:
            ids = (source.add(_joined(sources, source.is_text)), target.add(_joined(targets, target.is_text)))
        if "relation" in read.names:
            assert self._relations is not None
            at = read.index("relation")
            self._relations.add(_joined([columns[at] for columns in held], self._relations.is_text))
        for name in ("weight", "time"):
            if name in read.names:
                at = read.index(name)
                self._beside[name].append(np.concatenate([columns[at] for columns in held]))
                if name == "time":
                    self._note_order(self._beside[name].read(len(self._groups)), read.split)
        if "features" in read.names:
            at = read.index("features")
            self._beside["features"].append(np.concatenate([np.stack(columns[at:], axis=1) for columns in held]))
        self._groups.append(_Group(sum(len(columns[0]) for columns in held), read.split, read.kind, ids))

    def _note_order(self, times: Array, split: int) -> None:
        last = self._last_time.get(split, times[0])
        self.in_order = self.in_order and bool(times[0] >= last) and bool((times[1:] >= times[:-1]).all())
        self._last_time[split] = max(last, times.max())

    def pieces(self, split: int = 0) -> Iterator[Piece]:
        """The edges of a split with numbered nodes and relations, once ids are numbered."""
        first: dict[str, int] = {}
        for kind in self._ids:
            first[kind] = sum(self._ids[before].num_nodes for before in first)
        types = {kind: number for number, kind in enumerate(self._inputs.edge_types)}
        for number, group in enumerate(self._groups):
            if group.split != split:
                continue
            source, _, target = group.kind
            if source == target:
                ids = self._ids[source].group(group.ids[0])
                piece = {"src": ids[: len(ids) // 2], "dst": ids[len(ids) // 2 :]}
            else:
                piece = {"src": self._ids[source].group(group.ids[0]), "dst": self._ids[target].group(group.ids[1])}
            if len(self._ids) > 1:
                piece = {"src": piece["src"] + np.int64(first[source]), "dst": piece["dst"] + np.int64(first[target])}
            if types:
                piece["relation"] = np.full(group.size, types[group.kind], np.int32)
            elif self._relations is not None:
                piece["relation"] = self._relations.group(number)
            for name, spool in self._beside.items():
                values = spool.read(number)
                piece[name] = values.reshape(group.size, -1) if name == "features" else values
            yield piece

    def times(self) -> Iterator[Array]:
        """The times of every group."""
        return (self._beside["time"].read(number) for number in range(len(self._groups)))

    def splits(self) -> list[int]:
        """The split of every group."""
        return [group.split for group in self._groups]


def _has(inputs: Inputs, name: str) -> bool:
    return name in inputs.edges[0].names


def _joined(parts: list[Any], text: bool) -> Any:
    return pa.concat_arrays(parts) if text else np.concatenate(parts)


def _interruptible(read: EdgeInput) -> Iterator[Any]:
    """The batches of a table, its reader closed at once when the import stops midway."""
    batches = read.table.batches(read.wanted)
    try:
        yield from batches
    except pa.ArrowException as error:
        raise IngestError(f"{read.table.path} cannot be read: {error}") from None
    finally:
        if hasattr(batches, "close"):
            batches.close()
