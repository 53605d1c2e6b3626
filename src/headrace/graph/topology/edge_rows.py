"""`EdgeRows`: the compressed rows of a PyG `edge_index`, remembered for as long as that tensor lives and is not changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from headrace import _native
from headrace._arrays import thread_count
from headrace.graph.topology.transpose import transposed

T = TypeVar("T")
_HEADS = 4  # of one edge_index: a layer each
_INT32 = torch.iinfo(torch.int32).max


@dataclass(frozen=True, eq=False)
class EdgeRows:
    """Row i lists the sources of the edges into target i. Targets past the last row have no edges.

    `permutation` holds the position of every entry in the `edge_index`; None says that entries stand in its order.
    `hops` are the nodes of a sample up to each hop, the seeds first: rows of the nodes up to one read those up to the next.
    """

    indptr: Tensor  # int64, [rows + 1]; rows are at most num_dst
    indices: Tensor  # int32 while ids fit, [edges]
    num_src: int
    num_dst: int
    permutation: Tensor | None = None
    first: int = 0
    hops: tuple[int, ...] = ()
    _derived: dict[str, Any] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """How many of the targets have a row of their own."""
        return self.indptr.numel() - 1

    def derived(self, name: str, make: Callable[[], T]) -> T:
        """What follows from the rows alone: made once and kept."""
        if name not in self._derived:
            self._derived[name] = _for_all_modes(make)
        value: T = self._derived[name]
        return value

    def derived_from(self, tensor: Tensor, name: str, make: Callable[[], T]) -> T:
        """What follows from the rows and a tensor: made once and kept while the tensor lives and is not changed.

        What `make` returns must not refer to the tensor, which would then live as long as the rows.
        """
        return _kept_in(self.derived("from tensors", WeakTensorKeyDictionary), tensor, name, make)

    def whole(self) -> EdgeRows:
        """The same edges with a row for each of the targets."""
        return self if self.num_rows == self.num_dst else self.derived("whole", self._padded)

    def head(self, rows: int) -> EdgeRows:
        """The first rows alone. The last few that were asked for are kept."""
        if rows >= self.num_rows:
            return self
        heads: dict[int, EdgeRows] = self.derived("heads", dict)
        if rows not in heads:
            while len(heads) >= _HEADS:
                heads.pop(next(iter(heads)), None)
            heads[rows] = self._cut(rows)
        return heads[rows]

    def within(self, sources: int) -> EdgeRows | None:
        """Of a sample, the rows up to the last hop that reads only the first `sources` nodes; None where not even the seeds' do."""
        last = sum(reach <= sources for reach in self.hops[1:]) - 1
        return None if last < 0 else self.derived(f"within {sources}", lambda: self._cut(self.hops[last], sources))

    def repeated(self, times: int) -> EdgeRows:
        """The rows repeated `times` times, each copy over sources of its own. Made once and kept."""
        return self if times == 1 else self.derived(f"repeated {times}", lambda: self._repeated(times))

    def reverse(self) -> EdgeRows:
        """The transpose, a row for each source: its `permutation` holds positions in these rows. Made once and kept."""
        return self.derived("reverse", self._reversed)

    def targets(self) -> Tensor:
        """The row of every entry.  # -> [edges], int64"""
        return self.derived("targets", self._targets)

    def sources(self) -> Tensor:
        """The source of every entry.  # -> [edges], int64"""
        return self.derived("sources", self.indices.long)

    def degrees(self) -> Tensor:
        """How many entries each row has.  # -> [rows]"""
        return self.derived("degrees", self.indptr.diff)

    def of_edges(self, values: Tensor) -> Tensor:
        """Values of edges, in the order of the entries."""
        if self.permutation is not None:
            return values.index_select(0, self._positions())
        return values if len(values) == len(self.indices) else values[: len(self.indices)]

    def _positions(self) -> Tensor:
        assert self.permutation is not None
        return self.derived("positions", self.permutation.long)

    def _padded(self) -> EdgeRows:
        end = self.indptr[-1:].expand(self.num_dst - self.num_rows)
        return EdgeRows(torch.cat([self.indptr, end]), self.indices, self.num_src, self.num_dst, self.permutation)

    def _cut(self, rows: int, sources: int | None = None) -> EdgeRows:
        indptr = self.indptr[: rows + 1]
        end = int(indptr[-1])
        positions = None if self.permutation is None else self.permutation[:end]
        return EdgeRows(indptr, self.indices[:end], self.num_src if sources is None else sources, rows, positions)

    def _repeated(self, times: int) -> EdgeRows:
        edges = len(self.indices)
        begins = _copies(self.indptr[:-1], times, edges)
        indptr = torch.cat([begins, begins.new_full((1,), times * edges)])
        positions = None if self.permutation is None else _copies(self.permutation, times, edges)
        sizes = times * self.num_src, times * self.num_rows
        out = EdgeRows(indptr, _copies(self.indices, times, self.num_src), *sizes, positions)
        if "reverse" in self._derived:
            out._derived["reverse"] = self.reverse()._repeated(times)
        return out

    def _reversed(self) -> EdgeRows:
        if self.indptr.device.type == "cpu":
            threads = thread_count(None)
            arrays = _native.transpose_csr(self.indptr, self.indices, self.num_src, positions=True, threads=threads)
            indptr, indices, position = (torch.from_numpy(array) for array in arrays)
        else:
            indptr, indices, position = transposed(self.indptr, self.indices, self.num_src)
        return EdgeRows(indptr, indices, self.num_dst, self.num_src, position)

    def _targets(self) -> Tensor:
        rows = torch.arange(self.num_rows, device=self.indptr.device)
        return torch.repeat_interleave(rows, self.degrees(), output_size=len(self.indices))

    def __repr__(self) -> str:
        return f"EdgeRows({self.num_src} -> {self.num_dst}, num_edges={len(self.indices)})"


def _copies(values: Tensor, times: int, step: int) -> Tensor:
    """The values, then the values and `step`, and so on: in 64 bits where they need them.  # [n] -> [times * n]"""
    dtype = values.dtype if times * step <= torch.iinfo(values.dtype).max else torch.int64
    shifts = torch.arange(times, dtype=dtype, device=values.device) * step
    return (values.to(dtype) + shifts.unsqueeze(1)).reshape(-1)


_Key = tuple[int, int, bool]
# By the identity of a tensor, weakly: an entry goes with its tensor, and no other tensor can be taken for it.
_MEMORY = WeakTensorKeyDictionary()
_KEPT = WeakTensorKeyDictionary()  # what is no rows


def kept_with(tensor: Tensor, name: str, make: Callable[[], T]) -> T:
    """What follows from a tensor alone, made once and kept while it lives and is not changed.

    What `make` returns must not refer to the tensor, which would then live for ever.
    """
    return _kept_in(_KEPT, tensor, name, make)


def _kept_in(memory: WeakTensorKeyDictionary, tensor: Tensor, name: str, make: Callable[[], T]) -> T:
    if tensor.is_inference():
        return make()
    version, values = memory.get(tensor, (-1, {}))
    if version != tensor._version:
        values = {}
        memory[tensor] = (tensor._version, values)
    if name not in values:
        values[name] = _for_all_modes(make)
    value: T = values[name]
    return value


def carry(edge_index: Tensor, rows: EdgeRows) -> None:
    """Let `rows_of` answer with `rows` for this tensor, until it is changed."""
    if not edge_index.is_inference():
        _MEMORY[edge_index] = (edge_index._version, {_key(rows.num_src, rows.num_dst, False): rows})


def carried(tensor: Tensor) -> EdgeRows | None:
    """The rows that were last given to `carry` for this tensor, if it was not changed since."""
    return next(iter(_remembered(tensor).values()), None)


def rows_of(edge_index: Tensor, num_src: int, num_dst: int, *, flipped: bool = False) -> EdgeRows | None:
    """The compressed rows of the edges `edge_index[0] -> edge_index[1]`, or the other way round if `flipped`.

    Sorted once and remembered with the tensor itself; a change in place (which counts up `_version`) is noticed. Returns None
    where an id is not that of a source or target.
    """
    key = _key(num_src, num_dst, flipped)
    if edge_index.is_inference():  # keeps no version
        return _built(edge_index, key)
    remembered = _remembered(edge_index)
    rows = remembered.get(key)
    if rows is None:
        rows = _for_all_modes(lambda: _built(edge_index, key))
        if not remembered:
            _MEMORY[edge_index] = (edge_index._version, remembered)
        if rows is not None:
            remembered[key] = rows
    return rows


def _for_all_modes(make: Callable[[], T]) -> T:
    """Make a value outside inference mode: tensors made within it could not be used in training afterwards."""
    if not torch.is_inference_mode_enabled():
        return make()
    with torch.inference_mode(False):
        return make()


def _remembered(tensor: Tensor) -> dict[_Key, EdgeRows]:
    if tensor.is_inference():
        return {}
    version, remembered = _MEMORY.get(tensor, (-1, {}))
    return remembered if version == tensor._version else {}


def _key(num_src: int, num_dst: int, flipped: bool) -> _Key:
    return num_src, num_dst, flipped


def _built(edge_index: Tensor, key: _Key) -> EdgeRows | None:
    num_src, num_dst, flipped = key
    src, dst = edge_index.detach().flip(0) if flipped else edge_index.detach()
    entries, wide = len(src), max(num_src, num_dst) > _INT32
    if entries == 0:
        empty = torch.zeros(1, dtype=torch.int64, device=src.device)
        return EdgeRows(empty, src.to(torch.int32), num_src, num_dst)
    seen = torch.stack([*torch.aminmax(src), *torch.aminmax(dst), (dst[1:] < dst[:-1]).any().to(dst.dtype)])
    low_src, high_src, low_dst, high_dst, unsorted = seen.tolist()  # a GPU is waited for once
    if low_src < 0 or high_src >= num_src or low_dst < 0 or high_dst >= num_dst:
        return None
    if not unsorted:
        bounds = torch.arange(num_dst + 1, device=dst.device)
        indptr = torch.searchsorted(dst.contiguous(), bounds)
        return EdgeRows(indptr, src.to(torch.int64 if wide else torch.int32), num_src, num_dst)
    if src.device.type == "cpu":
        arrays = _native.build_csr(
            src.long().contiguous(),
            dst.long().contiguous(),
            max(num_src, num_dst),
            wide_index=wide,
            undirected=False,
            deduplicate=False,
            self_loops="keep",
            positions=True,
            threads=thread_count(None),
        )
        indptr, indices, position = (torch.from_numpy(array) for array in arrays)
        return EdgeRows(indptr[: num_dst + 1], indices, num_src, num_dst, position)
    keys, order = torch.sort(dst, stable=True)
    indptr = torch.searchsorted(keys, torch.arange(num_dst + 1, device=dst.device, dtype=keys.dtype))
    return EdgeRows(indptr, src[order].to(torch.int64 if wide else torch.int32), num_src, num_dst, order)
