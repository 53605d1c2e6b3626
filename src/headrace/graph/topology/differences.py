"""`Topologies`: the edges of a sequence of graphs over the same nodes, each as little as it takes.

A topology that was there before is kept once. One that resembles its predecessor is kept as a difference: the places that go and
the edges that come. Rows are sorted by source, so that the order of edges follows from which there are.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LONGEST = 16  # differences from one whole topology to the next: what is read for one graph at the most
_CACHE = 64  # topologies that stay built


@dataclass(frozen=True, eq=False)
class _Whole:
    indptr: Tensor
    indices: Tensor

    @property
    def nbytes(self) -> int:
        return self.indptr.nbytes + self.indices.nbytes


@dataclass(frozen=True, eq=False)
class _Difference:
    """From the topology `base`: `gone` are places among its edges, `row` and `source` the edges that come."""

    base: int
    gone: NDArray[np.unsignedinteger]
    row: NDArray[np.unsignedinteger]
    source: NDArray[np.unsignedinteger]

    @property
    def nbytes(self) -> int:
        return self.gone.nbytes + self.row.nbytes + self.source.nbytes


class Topologies:
    """Distinct topologies by number; `add` returns the number of an equal one where there is one.

    >>> import numpy as np
    >>> from headrace.graph.topology.differences import Topologies
    >>> kept = Topologies(num_nodes=3)
    >>> kept.add(np.array([0, 1]), np.array([1, 2])), kept.add(np.array([1, 0]), np.array([2, 1]))
    (0, 0)
    """

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        self._kept: list[_Whole | _Difference] = []
        self._depth: list[int] = []
        self._edges: list[int] = []
        self._numbers: dict[tuple[int, bytes], list[int]] = {}
        self._built: OrderedDict[int, _Whole] = OrderedDict()
        self._last: NDArray[np.int64] | None = None  # keys of the one added last

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept, what is built from it not counted."""
        return sum(kept.nbytes for kept in self._kept)

    @property
    def differences(self) -> int:
        """How many are kept as differences."""
        return sum(isinstance(kept, _Difference) for kept in self._kept)

    def num_edges(self, number: int) -> int:
        return self._edges[number]

    def add(self, src: NDArray[np.integer], dst: NDArray[np.integer]) -> int:
        """Keep the topology of these edges, which may be in any order."""
        keys = np.sort(dst.astype(np.int64) * self.num_nodes + src)
        same = (len(keys), _digest(keys))
        for number in self._numbers.get(same, ()):
            if np.array_equal(self._keys(number), keys):
                return number
        number = len(self._kept)
        whole = self._whole(keys)
        kept: _Whole | _Difference = whole
        if number and self._last is not None and self._depth[-1] < _LONGEST:
            difference = self._difference(number - 1, self._last, keys)
            kept = difference if difference.nbytes < whole.nbytes else whole
        self._kept.append(kept)
        self._depth.append(self._depth[-1] + 1 if isinstance(kept, _Difference) else 0)
        self._edges.append(len(keys))
        self._numbers.setdefault(same, []).append(number)
        self._remember(number, whole)
        self._last = keys
        return number

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        """Compressed rows, `indptr` and `indices`."""
        if not -len(self._kept) <= number < len(self._kept):
            raise IndexError(f"there are {len(self._kept)} topologies, and {number} is none of them")
        whole = self._get(number % len(self._kept))
        return whole.indptr, whole.indices

    def _get(self, number: int) -> _Whole:
        if number in self._built:
            self._built.move_to_end(number)
            return self._built[number]
        kept = self._kept[number]
        whole = kept if isinstance(kept, _Whole) else self._applied(kept)
        self._remember(number, whole)
        return whole

    def _remember(self, number: int, whole: _Whole) -> None:
        self._built[number] = whole
        while len(self._built) > _CACHE:
            self._built.popitem(last=False)

    def _applied(self, difference: _Difference) -> _Whole:
        base = self._keys(difference.base)
        stay = np.delete(base, difference.gone.astype(np.int64))
        come = difference.row.astype(np.int64) * self.num_nodes + difference.source
        return self._whole(np.sort(np.concatenate([stay, come])))

    def _keys(self, number: int) -> NDArray[np.int64]:
        whole = self._get(number)
        rows = np.repeat(np.arange(self.num_nodes, dtype=np.int64), np.diff(whole.indptr.numpy()))
        keys: NDArray[np.int64] = rows * self.num_nodes + whole.indices.numpy()
        return keys

    def _whole(self, keys: NDArray[np.int64]) -> _Whole:
        row, source = np.divmod(keys, max(self.num_nodes, 1))
        indptr = np.searchsorted(row, np.arange(self.num_nodes + 1)).astype(np.int64)
        kind = np.int32 if self.num_nodes <= np.iinfo(np.int32).max else np.int64
        return _Whole(torch.from_numpy(indptr), torch.from_numpy(source.astype(kind)))

    def _difference(self, base: int, before: NDArray[np.int64], keys: NDArray[np.int64]) -> _Difference:
        """The removed and the added edges. Repeated edges are counted: the n-th copy of an edge is kept if both have n copies."""
        gone = np.flatnonzero(_occurrence(before) >= _count(before, keys))
        come = keys[_occurrence(keys) >= _count(keys, before)]
        row, source = np.divmod(come, self.num_nodes)
        return _Difference(base, _small(gone, len(before)), _small(row, self.num_nodes), _small(source, self.num_nodes))


def _occurrence(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each of the sorted keys, how many equal ones stand before it."""
    return np.arange(len(keys)) - np.searchsorted(keys, keys, side="left")


def _count(keys: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each of the keys, how many equal ones are among the sorted `others`."""
    return np.searchsorted(others, keys, side="right") - np.searchsorted(others, keys, side="left")


def _small(values: NDArray[np.int64], bound: int) -> NDArray[np.unsignedinteger]:
    kind = np.uint16 if bound <= 1 << 16 else np.uint32 if bound <= 1 << 32 else np.uint64
    return values.astype(kind)


def _digest(keys: NDArray[np.int64]) -> bytes:
    mixed = keys * 0x5851F42D4C957F2D + (keys >> 17)
    return bytes(np.bitwise_xor.reduce(mixed, initial=0).tobytes())
