"""`Names`: what nodes and relations are called outside, read front to back from where a dataset keeps it."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from torch import Tensor

if TYPE_CHECKING:
    from headrace.graph.dataset import Dataset

_PIECE = 1 << 16  # names at a time


class Names:
    """Names of the numbers from 0 on, `count` of them: a Parquet file with columns `node` and `id`, or a text with a line for each.

    They are read in pieces and never all held, unless `order` (the line that each number has) asks for them in another order.

    >>> import tempfile, pathlib
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name) / "names.txt"
    >>> _ = path.write_text("Ada\\nGrace\\nEmmy\\n")
    >>> names = Names(path, 3)
    >>> names.find("Grace"), names.of([2, 0])
    ([1], ['Emmy', 'Ada'])
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, count: int | None = None, *, order: Tensor | None = None) -> None:
        self.path, self.count, self._order = path, count, order

    @classmethod
    def of_nodes(cls, data: Dataset) -> Names | None:
        """Names of the nodes of a dataset: the ids that an import began with, or its text of names; None where it has neither."""
        if data.id_map is not None:
            return cls(data.id_map, data.num_nodes)
        path = data.names.get("nodes")
        return None if path is None else cls(path, data.num_nodes, order=data.order)

    @classmethod
    def of_relations(cls, data: Dataset, count: int) -> Names | None:
        """Names of the relations of a dataset, where it has them."""
        path = data.names.get("relations")
        return None if path is None else cls(path, count)

    @property
    def type(self) -> Any:
        """The Arrow type of a name: a text, or an integer where an import had integers."""
        return pq.read_schema(self.path).field("id").type if self._is_table else pa.string()

    def pieces(self) -> Iterator[Any]:
        """All names in the order of their numbers, as Arrow arrays."""
        count = 0
        source = self._lines() if not self._is_table else self._columns()
        if self._order is not None:
            table = pa.chunked_array(list(source), type=self.type)
            self._check(len(table))
            order = self._order.numpy()
            source = (
                table.take(pa.array(order[begin : begin + _PIECE])).combine_chunks() for begin in range(0, len(order), _PIECE)
            )
        for piece in source:
            count += len(piece)
            yield piece
        self._check(count)

    def find(self, name: str) -> list[int]:
        """The numbers that are called `name`: one, as a rule, or none."""
        if pa.types.is_integer(self.type):
            if not name.removeprefix("-").isdecimal():
                return []
            wanted = pa.scalar(int(name), self.type)
        else:
            wanted = pa.scalar(name)
        numbers, begin = [], 0
        for piece in self.pieces():
            numbers += (np.flatnonzero(pc.equal(piece, wanted).to_numpy(zero_copy_only=False)) + begin).tolist()
            begin += len(piece)
        return numbers

    def like(self, name: str, most: int = 3) -> list[str]:
        """Some names that contain `name` in any case, to suggest."""
        if pa.types.is_integer(self.type):
            return []
        names: list[str] = []
        for piece in self.pieces():
            names += piece.filter(pc.match_substring(piece, name, ignore_case=True)).slice(0, most).to_pylist()
            if len(names) >= most:
                break
        return names[:most]

    def of(self, numbers: Iterable[int]) -> list[Any]:
        """The names of some numbers, in one pass."""
        wanted = list(numbers)
        names: dict[int, Any] = {}
        begin, last = 0, max(wanted, default=-1)
        for piece in self.pieces():
            names |= {n: piece[n - begin].as_py() for n in set(wanted) if begin <= n < begin + len(piece)}
            begin += len(piece)
            if begin > last:
                break
        if missing := [number for number in wanted if number not in names]:
            raise IndexError(f"{self.path} has names for the numbers 0 to {begin - 1}, not for {missing[0]}")
        return [names[number] for number in wanted]

    def save(self, path: Path) -> None:
        """Write them to a Parquet file as an import's id map is one, each number with its own name."""
        schema = pa.schema([("node", pa.int64()), ("id", self.type)])
        begin = 0
        with pq.ParquetWriter(path, schema) as writer:
            for piece in self.pieces():
                numbers = pa.array(np.arange(begin, begin + len(piece)))
                writer.write_table(pa.table([numbers, piece], schema=schema))
                begin += len(piece)

    @property
    def _is_table(self) -> bool:
        return self.path.suffix == ".parquet"

    def _check(self, count: int) -> None:
        if self.count is not None and count != self.count:
            raise ValueError(f"{self.path} has {count} names for {self.count}: it belongs to another dataset")

    def _lines(self) -> Iterator[Any]:
        opened = gzip.open if self.path.suffix == ".gz" else open
        with opened(self.path, "rt", encoding="utf-8", newline="\n") as file:
            while lines := [line.rstrip("\r\n") for line in islice(file, _PIECE)]:
                yield pa.array(lines, pa.string())

    def _columns(self) -> Iterator[Any]:
        begin = 0
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=_PIECE, columns=["node", "id"]):
                if not np.array_equal(batch["node"].to_numpy(), np.arange(begin, begin + len(batch))):
                    break
                yield batch["id"]
                begin += len(batch)
            else:
                return
        table = pq.read_table(self.path, columns=["node", "id"]).sort_by("node")  # written elsewhere, in some other order
        if not np.array_equal(table["node"].to_numpy(), np.arange(len(table))):
            raise ValueError(f"{self.path} must name every number from 0 on once")
        yield table["id"].slice(begin).combine_chunks()


class NameReader:
    """Names dealt in pieces of any size, to go beside rows that are read in pieces of their own."""

    def __init__(self, names: Names) -> None:
        self._pieces, self._left = names.pieces(), pa.array([], names.type)

    def take(self, count: int) -> Any:
        """The next `count` names, as an Arrow array."""
        parts, missing = [], count
        while missing:
            if not len(self._left):
                self._left = next(self._pieces)
                continue
            parts.append(self._left.slice(0, missing))
            self._left = self._left.slice(len(parts[-1]))
            missing -= len(parts[-1])
        return pa.concat_arrays(parts) if parts else self._left.slice(0, 0)
