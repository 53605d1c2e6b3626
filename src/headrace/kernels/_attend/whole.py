"""Rows that are part of a whole: where they stand there, which is what dropout of their coefficients is a function of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Whole:
    """Which rows of a whole CSR the rows at hand are. Each has all entries of its row of the whole, in the same order.

    >>> import torch
    >>> from headrace.kernels import Whole
    >>> whole = Whole.of(torch.tensor([0, 2, 2, 5]), torch.tensor([2, 0]))
    >>> whole.begins.tolist(), whole.entries
    ([2, 0], 5)
    """

    rows: Tensor  # int64 [rows]: which row of the whole each one is
    begins: Tensor  # int64 [rows]: at which entry it begins there
    entries: int  # of the whole; behind them stand the self-loops, one per row

    @classmethod
    def of(cls, indptr: Tensor, rows: Tensor) -> Whole:
        """The rows of these numbers, in any order, of the CSR with this `indptr`."""
        return cls(rows, indptr[rows], int(indptr[-1]))

    def check_shape(self, num_rows: int) -> None:
        """ValueError unless it is of so many rows."""
        for name, tensor in (("rows", self.rows), ("begins", self.begins)):
            if tensor.dtype != torch.int64 or tensor.shape != (num_rows,):
                raise ValueError(
                    f"whole.{name} must be int64 of shape ({num_rows},), a number per row of indptr, "
                    f"not {tensor.dtype} of {tuple(tensor.shape)}"
                )
        if not 0 <= self.entries <= 2**56:
            raise ValueError(f"whole.entries must be from 0 to 2**56, not {self.entries}")

    def shift(self, indptr: Tensor) -> Tensor:
        """From where an entry of each row stands under this `indptr` to where it stands in the whole.  # -> [rows]

        Numbers on a CPU are checked; for those on a GPU the host would wait.
        """
        shift = self.begins - indptr[:-1]
        if self.rows.device.type == "cpu" and len(self.rows):
            if int(self.rows.min()) < 0 or int(self.begins.min()) < 0:
                raise ValueError("whole.rows and whole.begins must not be negative")
            last = int((shift + indptr[1:]).max())
            if last > self.entries:
                raise ValueError(f"whole.begins leads to entry {last} of a whole that has {self.entries}")
        return shift
