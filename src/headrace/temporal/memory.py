"""`NodeMemory`: one copy of what nodes remember, read and written in the order of a schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from headrace.store import ArrayStore
from headrace.temporal.tickets import Tickets

_LOGGED = 1 << 16  # operations that the log remembers


class Operation(NamedTuple):
    """One read or write of a memory, as it was done."""

    ticket: int
    operation: Literal["read", "write"]
    batch: int
    rows: int


class NodeMemory:
    """A row of memory and a row of mail for every node: zeros, until events write them.

    Reads and writes take tickets and are done in their order by a thread beside the trainer: a write is handed over when a batch's
    memory is known, and it and the next read run while the batch goes on. `log` has what was done, the latest last.

    >>> import torch
    >>> from headrace.temporal import NodeMemory
    >>> memory = NodeMemory(4, memory=2, mail=1)
    >>> read = memory.read(1, 0, [torch.tensor([3])])  # waits for ticket 0
    >>> write = memory.write(0, 0, torch.tensor([3]), torch.ones(1, 3))
    >>> read.result()[0].tolist(), [operation.operation for operation in memory.log]
    ([[1.0, 1.0, 1.0]], ['write', 'read'])
    """

    def __init__(
        self, nodes: int, *, memory: int, mail: int, device: str | torch.device = "cpu", rows: ArrayStore | None = None
    ) -> None:
        self.width, self.mail_width = memory, mail
        self.store = rows if rows is not None else ArrayStore(torch.zeros(nodes, memory + mail, device=device))
        self.log: deque[Operation] = deque(maxlen=_LOGGED)
        self._tickets = Tickets("node memory")

    @property
    def rows(self) -> Tensor:
        """Memory, then mail.  # [nodes, memory + mail]"""
        return self.store.table

    def begin(self, ticket: int) -> None:
        """Forget reads and writes that wait; the next ticket is `ticket`."""
        self._tickets.begin(ticket)

    def read(self, ticket: int, batch: int, ids: Sequence[Tensor], *, reset: bool = False) -> Future[list[Tensor]]:
        """Rows of some sets of nodes when the ticket's turn comes; `reset` zeroes the whole memory first."""

        def work() -> list[Tensor]:
            if reset:
                self.rows.zero_()
            rows = [self.store.gather(some, check=False) for some in ids]
            self.log.append(Operation(ticket, "read", batch, sum(map(len, rows))))
            return rows

        return self._tickets.submit(ticket, work)

    def write(self, ticket: int, batch: int, ids: Tensor, rows: Tensor) -> Future[None]:
        """Put rows in place when the ticket's turn comes, no id twice."""

        def work() -> None:
            self.store.put_(ids, rows)
            self.log.append(Operation(ticket, "write", batch, len(ids)))

        return self._tickets.submit(ticket, work)

    def settle(self) -> None:
        """Wait for all that can be done."""
        self._tickets.settle()

    def close(self) -> None:
        self._tickets.close()
