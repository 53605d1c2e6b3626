"""Where trained rows lie: in parts of equal length, each at an address in main memory or in a slot of a GPU's.

`HostTable` and `DeviceTable` answer the same two questions, rows by id and sums by id, for rows in one piece (`TrainedArray`, a
single part) and for a buffer that holds some of many partitions (`Partitioned`). They hold no locks and keep no memory alive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, as_ids_near, as_tensor, check_ids
from headrace.kernels import round_to_bfloat16
from headrace.store.pool import Buffers

DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class RowShape:
    """What rows look like: `num_rows` of them in parts of `rows_per_part`, `width` parameters and `state` floats each."""

    num_rows: int
    rows_per_part: int
    width: int
    state: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if self.num_rows < 0 or self.width < 0 or self.state < 0:
            raise ValueError(f"num_rows={self.num_rows}, width={self.width} and state={self.state} must not be negative")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be torch.float32 or torch.bfloat16, not {self.dtype}")


@dataclass(frozen=True)
class HostTable:
    """Parts in main memory by address, 0 for a part that is not here."""

    shape: RowShape
    row_bases: Tensor  # [parts] int64
    state_bases: Tensor  # [parts] int64
    threads: int
    pool: Buffers | None = None  # for what is gathered: fresh memory costs more than filling it

    def gather(self, ids: Tensor) -> tuple[Tensor, Tensor]:  # [k] -> [k, width], [k, state]
        ids = as_ids(ids, "ids")
        make = torch.empty if self.pool is None else self.pool.empty
        rows, state = make((len(ids), self.shape.width)), make((len(ids), self.shape.state))
        check_ids(ids, self.shape.num_rows)
        missing = _native.gather_trained(
            self.row_bases,
            self.state_bases,
            ids,
            rows,
            state,
            **self._how(),
        )
        _complain(missing)
        return rows, state

    def add(self, ids: Tensor, delta_rows: Tensor, delta_state: Tensor, *, seed: int, call: int) -> Tensor:
        """Add to rows and states; which parts were touched.  # [k], [k, width], [k, state] -> [parts] uint8"""
        ids = as_ids(ids, "ids")
        rows, state = as_tensor(delta_rows, "delta_rows").float(), as_tensor(delta_state, "delta_state").float()
        check_parts(self.shape, ids, rows, state, "delta_rows", "delta_state")
        check_ids(ids, self.shape.num_rows)
        touched = torch.zeros(len(self.row_bases), dtype=torch.uint8)
        missing = _native.add_trained(
            self.row_bases,
            self.state_bases,
            ids,
            rows,
            state,
            touched,
            seed=seed,
            call=call,
            **self._how(),
        )
        _complain(missing)
        return touched

    def _how(self) -> dict[str, Any]:
        rows, half = max(self.shape.rows_per_part, 1), self.shape.dtype == torch.bfloat16
        return {"rows_per_part": rows, "num_rows": self.shape.num_rows, "half": half, "threads": self.threads}


@dataclass(frozen=True)
class DeviceTable:
    """Parts in slots of GPU memory, in plain torch (which runs on the CPU too, where it is what `HostTable` is tested against)."""

    shape: RowShape
    rows: Tensor  # [slots, rows_per_part, width], views of the slots' memory
    states: Tensor  # [slots, rows_per_part, state] float32
    slot_of: Tensor  # [parts] int64; -1 for a part that is not here

    def gather(self, ids: Tensor) -> tuple[Tensor, Tensor]:  # [k] -> [k, width], [k, state]
        slot, row = self._find(as_ids_near(ids, "ids", self.rows.device).to(self.rows.device))
        return self.rows[slot, row].float(), self.states[slot, row]

    def add(self, ids: Tensor, delta_rows: Tensor, delta_state: Tensor, *, seed: int, call: int) -> Tensor:
        """Add to rows and states, no id twice; which parts were touched.  # [k], [k, width], [k, state] -> [parts] uint8"""
        ids = as_ids_near(ids, "ids", self.rows.device).to(self.rows.device)
        rows, state = (x.detach().to(self.rows.device, torch.float32) for x in (delta_rows, delta_state))
        check_parts(self.shape, ids, rows, state, "delta_rows", "delta_state")
        slot, row = self._find(ids)
        rows = self.rows[slot, row].float() + rows
        self.rows[slot, row] = rows if self.shape.dtype == torch.float32 else round_to_bfloat16(rows, ids, seed=seed, call=call)
        self.states[slot, row] += state
        touched = torch.zeros(len(self.slot_of), dtype=torch.uint8, device=self.rows.device)
        touched[ids.long() // max(self.shape.rows_per_part, 1)] = 1
        return touched

    def _find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        check_ids(ids, self.shape.num_rows)
        if self.slot_of.is_cuda:  # another table may take its place while a kernel of this stream reads it
            self.slot_of.record_stream(torch.cuda.current_stream(self.slot_of.device))
        part = ids.long() // max(self.shape.rows_per_part, 1)
        slot = self.slot_of[part]
        if len(away := part[slot < 0][:1]):
            _complain(int(away[0]))
        return slot, ids.long() - part * self.shape.rows_per_part


def check_parts(shape: RowShape, ids: Tensor, rows: Tensor, state: Tensor, *names: str) -> None:
    """ValueError unless there is one row and one state of the right width per id."""
    wanted = (len(ids), shape.width), (len(ids), shape.state)
    if (tuple(rows.shape), tuple(state.shape)) != wanted:
        raise ValueError(
            f"{len(ids)} ids need {names[0]} of shape {wanted[0]} and {names[1]} of shape {wanted[1]}, "
            f"not {tuple(rows.shape)} and {tuple(state.shape)}"
        )


def _complain(part: int) -> None:
    if part >= 0:
        raise IndexError(
            f"rows of partition {part} are not resident: walk an order that brings it in, and hold it while its rows are used"
        )
