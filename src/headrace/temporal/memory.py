"""`NodeMemory`: one copy of what nodes remember, read and written in the order of a schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from headrace.store import ArrayStore
from headrace.temporal.tickets import Others, Tickets

LOGGED = 1 << 16  # operations that the log remembers


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

    rows: what holds them, such as `SharedRows`, where other processes have tickets too: those of `others`.

    On a GPU a read or a write is done when it is launched. All threads launch on the device's default stream, which goes by the
    order of launches; and that is the order of tickets, since a write is handed over after the rows that it writes were launched,
    and a reader has its rows from the future, after the read was.

    >>> import torch
    >>> from headrace.temporal import NodeMemory
    >>> memory = NodeMemory(4, memory=2, mail=1)
    >>> read = memory.read(1, 0, [torch.tensor([3])])  # waits for ticket 0
    >>> write = memory.write(0, 0, torch.tensor([3]), torch.ones(1, 3))
    >>> read.result()[0].tolist(), [operation.operation for operation in memory.log]
    ([[1.0, 1.0, 1.0]], ['write', 'read'])
    """

    def __init__(
        self,
        nodes: int,
        *,
        memory: int,
        mail: int,
        device: str | torch.device = "cpu",
        rows: ArrayStore | None = None,
        copy: int = 0,
        others: Others | None = None,
    ) -> None:
        self.width, self.mail_width = memory, mail
        self.store = rows if rows is not None else ArrayStore(torch.zeros(nodes, memory + mail, device=device))
        self.log: deque[Operation] = deque(maxlen=LOGGED)
        self.tickets = Tickets(f"node memory {copy}", others)
        self._written: tuple[int, Future[None]] | None = None  # the latest write that was handed over

    @property
    def rows(self) -> Tensor:
        """Memory, then mail.  # [nodes, memory + mail]"""
        return self.store.table

    def begin(self, ticket: int) -> None:
        """Forget reads and writes that wait; the next ticket is `ticket`."""
        self.tickets.begin(ticket)
        self._written = None

    def read(self, ticket: int, batch: int, ids: Sequence[Tensor], *, reset: bool = False) -> Future[list[Tensor]]:
        """Rows of some sets of nodes when the ticket's turn comes; `reset` zeroes the whole memory first."""

        def work() -> list[Tensor]:
            if reset:
                self.rows.zero_()
            rows = [self.store.gather(some, check=False) for some in ids]
            self.log.append(Operation(ticket, "read", batch, sum(map(len, rows))))
            return rows

        return self.tickets.submit(ticket, work)

    def write(self, ticket: int, batch: int, ids: Tensor, rows: Tensor) -> Future[None]:
        """Put rows in place when the ticket's turn comes, no id twice."""

        def work() -> None:
            self.store.put_(ids, rows, check=False)
            self.log.append(Operation(ticket, "write", batch, len(ids)))

        written: Future[None] = self.tickets.submit(ticket, work)
        if self._written is None or ticket > self._written[0]:
            self._written = ticket, written
        return written

    def settle(self) -> None:
        """Wait until all writes are done that were handed over."""
        if self._written is not None:
            self._written[1].result()

    def close(self) -> None:
        self.tickets.close()
