"""`TrainedRows`: embedding rows with their optimizer's state, by node id, and `TrainedArray`, which holds them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids_near, check_ids, thread_count
from headrace._device import device_of
from headrace.pipeline.stream import InTurn
from headrace.store.pool import BufferPool, Buffers
from headrace.store.raw_rows import piece_rows, pieces
from headrace.store.row_table import DeviceTable, HostTable, RowShape, check_parts

if TYPE_CHECKING:
    from headrace.store.disk.partitioned import Partitioned

Initial = Callable[[int, int], Tensor] | tuple[float, int]
"""Rows `begin` to `end` to start from, or (scale, seed) for normal numbers of that standard deviation."""


@runtime_checkable
class TrainedRows(Protocol):
    """A store whose rows have two parts, parameters and their optimizer's state: `gather` gives both, `add_` and `put_` take both.

    All else is as in `Store`. Training adds its updates, so batches in flight never overwrite one another (Marius, section 3).
    """

    shape: torch.Size  # of the parameters: (`num_rows`, `width`)
    dtype: torch.dtype  # of the parameters where they lie; `gather` and `scan` give float32
    device: torch.device

    @property
    def table(self) -> Tensor | None:
        """The parameters of all rows as one tensor, if they are held so."""
        return None

    @property
    def disk(self) -> Partitioned | None:
        """The store of partitions, if only some rows are in memory at a time: walk an order to gather, checkpoint to save."""
        return None

    @property
    def num_rows(self) -> int:
        return self.shape[0]

    @property
    def width(self) -> int:
        return self.shape[1]

    @property
    def state_width(self) -> int:
        """Floats of optimizer state a row."""
        ...

    @property
    def nbytes(self) -> int: ...

    def gather(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and states, as float32.  # [k] -> [k, width], [k, state]"""
        ...

    def add_(self, ids: Tensor, delta_rows: Tensor, delta_state: Tensor) -> None:
        """Add to rows and states; no id twice in a call.  # [k], [k, width], [k, state]"""
        ...

    def put_(self, ids: Tensor, rows: Tensor, state: Tensor) -> None:
        """Replace rows and states; no id twice in a call.  # [k], [k, width], [k, state]"""
        ...

    def scan(self, *, rows: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """The parameters of all rows, front to back: the id of the first row of a piece, and the piece.  # int, [n, width]"""
        ...


class TrainedArray(TrainedRows):
    """All rows in main memory, or on a GPU.

    Rows are float32 or bfloat16; to the latter deltas are added with stochastic rounding, keyed by (`seed`, number of the call, id,
    column), so a run gives the same bits again. States are float32. On the host, gathers take their memory from `pool`.

    Calls may come from many threads: adds take turns, and a gather meanwhile may see some elements before and some after an add.

    >>> import torch
    >>> from headrace.store import TrainedArray
    >>> rows = TrainedArray.create(4, 2, state=1, init=(0.0, 0))
    >>> rows.add_(torch.tensor([3]), torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5]]))
    >>> rows.gather(torch.tensor([3]))
    (tensor([[1., 2.]]), tensor([[0.5000]]))
    """

    def __init__(
        self, rows: Tensor, state: Tensor, *, seed: int = 0, pool: Buffers | None = None, threads: int | None = None
    ) -> None:
        if rows.dim() != 2 or state.dim() != 2 or len(rows) != len(state):
            raise ValueError(f"rows and state must be matrices of equal length, not {tuple(rows.shape)} and {tuple(state.shape)}")
        if state.dtype != torch.float32 or state.device != rows.device:
            raise ValueError(f"state must be float32 on {rows.device}, as the rows are; it is {state.dtype} on {state.device}")
        self.rows, self.state, self.seed, self.calls = rows.detach().contiguous(), state.detach().contiguous(), seed, 0
        self.shape, self.dtype, self.device = rows.shape, rows.dtype, rows.device
        self._shape = shape = RowShape(len(rows), len(rows), rows.shape[1], state.shape[1], rows.dtype)
        self._turns = InTurn(rows.device)
        self._table: HostTable | DeviceTable
        if rows.device.type == "cpu":
            # A part of no rows has no address; any other than 0, which says that it is not here, will do.
            bases = [torch.tensor([max(x.data_ptr(), 1)]) for x in (self.rows, self.state)]
            self._table = HostTable(shape, bases[0], bases[1], thread_count(threads), pool)
        else:
            with self._turns:  # so that streams of later turns see the zero
                slot = torch.zeros(1, dtype=torch.int64, device=rows.device)
            self._table = DeviceTable(shape, self.rows.unsqueeze(0), self.state.unsqueeze(0), slot)

    @classmethod
    def create(
        cls,
        num_rows: int,
        width: int,
        *,
        state: int = 1,
        dtype: torch.dtype = torch.float32,
        init: Initial = (1e-3, 0),
        device: str | torch.device = "cpu",
        seed: int = 0,
        pool: Buffers | None = None,
        threads: int | None = None,
    ) -> TrainedArray:
        """New rows: `state` floats a row (1 for row-wise Adagrad, `width` for the full one), zero at first."""
        where = device_of(device)
        RowShape(num_rows, num_rows, width, state, dtype)
        if where.type == "cpu":  # on huge pages: rows are read at random, and would miss their page more often than their cache
            rows = BufferPool(limit=0).empty((num_rows, width), dtype)
        else:
            rows = torch.empty(num_rows, width, dtype=dtype, device=where)
        _fill(rows, init, threads)
        return cls(rows, torch.zeros(num_rows, state, device=where), seed=seed, pool=pool, threads=threads)

    @property
    def state_width(self) -> int:
        return self.state.shape[1]

    @property
    def table(self) -> Tensor:
        """The rows themselves."""
        return self.rows

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.state.nbytes

    def gather(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and states, as float32.  # [k] -> [k, width], [k, state]"""
        if self.device.type == "cpu":
            return self._table.gather(ids)
        with self._turns:
            return self._table.gather(ids)

    def add_(self, ids: Tensor, delta_rows: Tensor, delta_state: Tensor) -> None:
        """Add to rows and states; no id twice in a call.  # [k], [k, width], [k, state]"""
        with self._turns:
            self._table.add(ids, delta_rows, delta_state, seed=self.seed, call=self.calls)
            self.calls += 1

    def put_(self, ids: Tensor, rows: Tensor, state: Tensor) -> None:
        """Replace rows and states; no id twice in a call.  # [k], [k, width], [k, state]"""
        ids = as_ids_near(ids, "ids", self.device).to(self.device).long()
        check_ids(ids, self.num_rows)
        check_parts(self._shape, ids, rows, state, "rows", "state")
        with self._turns:
            self.rows.index_copy_(0, ids, rows.detach().to(self.device, self.dtype))
            self.state.index_copy_(0, ids, state.detach().to(self.device, torch.float32))

    def scan(self, *, rows: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """All rows, front to back, in pieces of at most `rows`, as float32.  # int, [n, width]"""
        for begin, end in pieces(self.num_rows, 4 * self.width, most=rows):
            yield begin, self.gather(torch.arange(begin, end))[0]


def initial_rows(init: Initial, begin: int, end: int, width: int, *, threads: int | None = None) -> Tensor:
    """Rows `begin` to `end` as `init` has them; normal numbers depend on seed, id and column alone.  # -> [end - begin, width]"""
    if callable(init):
        rows = torch.as_tensor(init(begin, end)).float()
        if tuple(rows.shape) != (end - begin, width):
            raise ValueError(f"init({begin}, {end}) must give shape {(end - begin, width)}, not {tuple(rows.shape)}")
        return rows
    scale, seed = init
    out = torch.empty(end - begin, width)
    _native.normal_rows(seed, begin, scale, out, threads=thread_count(threads))
    return out


def _fill(rows: Tensor, init: Initial, threads: int | None) -> None:
    """Write the initial rows into `rows`, on any device, a piece at a time."""
    width, step = rows.shape[1], piece_rows(4 * rows.shape[1])
    in_place = rows.is_cpu and rows.dtype == torch.float32 and not callable(init)
    staging = torch.empty(0 if in_place or callable(init) else min(step, len(rows)), width, pin_memory=rows.is_cuda)
    for begin in range(0, len(rows), step):
        part = rows[begin : begin + step]
        if callable(init):
            part.copy_(initial_rows(init, begin, begin + len(part), width))
            continue
        target = part if in_place else staging[: len(part)]
        _native.normal_rows(init[1], begin, init[0], target, threads=thread_count(threads))
        if not in_place:
            part.copy_(target.to(rows.device))  # waits until the staging memory is free again
