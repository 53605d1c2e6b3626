"""How a mail changes the memory of a node: a recurrent cell."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.kernels import gru_gates
from headrace.nn.tgn.time_encoding import TimeEncoding

Updater = Literal["gru", "rnn"]


class MemoryUpdate(nn.Module):
    """memory <- cell([mail || edge_x || phi(dt)], memory), by torch's `GRUCell` (TGN) or `RNNCell` (JODIE, DyRep)."""

    def __init__(self, memory: int, mail: int, edge: int, time: TimeEncoding, updater: Updater) -> None:
        super().__init__()
        if updater not in ("gru", "rnn"):
            raise ValueError(f'the updater must be "gru" or "rnn", not {updater!r}')
        self.memory, self.mail, self.edge, self.time = memory, mail, edge, time
        inputs = mail + edge + len(time.weight)
        self.cell: nn.GRUCell | nn.RNNCell = nn.GRUCell(inputs, memory) if updater == "gru" else nn.RNNCell(inputs, memory)

    def forward(
        self, memory: Tensor, mail: Tensor, dt: Tensor, edge_x: Tensor | None = None, has_mail: Tensor | None = None
    ) -> Tensor:
        """New rows of memory.  # [n, memory], [n, mail], [n], [n, edge] -> [n, memory]"""
        rows = len(memory)
        wanted = {"memory": (memory, self.memory), "mail": (mail, self.mail)}
        if edge_x is not None or self.edge:
            if edge_x is None:
                raise ValueError(f"the mail's edge_x is missing: the model was made for edge features of width {self.edge}")
            wanted["edge_x"] = edge_x, self.edge
        for name, (tensor, width) in wanted.items():
            if tensor.shape != (rows, width):
                raise ValueError(f"{name} must be [{rows}, {width}], not of shape {tuple(tensor.shape)}")
        stored = mail if edge_x is None else torch.cat([mail, edge_x], dim=1)
        changed = self._changed(stored, self.time(dt), memory)
        return changed if has_mail is None else torch.where(has_mail[:, None], changed, memory)

    def _changed(self, stored: Tensor, time: Tensor, memory: Tensor) -> Tensor:
        cell = self.cell
        if isinstance(cell, nn.GRUCell) and memory.device.type == "cpu":  # on a GPU torch's own is one kernel too
            # Two products: mail needs no gradient, so that of the inputs is one of the time's columns alone.
            of_mail, of_time = cell.weight_ih.split([stored.shape[1], time.shape[1]], dim=1)
            inputs = torch.addmm(F.linear(stored, of_mail, cell.bias_ih), time, of_time.t())
            return gru_gates(inputs, F.linear(memory, cell.weight_hh, cell.bias_hh), memory)
        rows: Tensor = cell(torch.cat([stored, time], dim=1), memory)
        return rows
