"""`Ghosts`: rows that other servers read, sent in rounds of one uneven all-to-all of what is ready."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from headrace.cluster.elastic.task import Direction, Task
from headrace.ranks import Exchange
from headrace.ranks.turns import Pending, Turns

_KEY = 4  # numbers of a task's key
_IDLE = (0.0003, 0.004)  # seconds that servers wait when none had anything to send: at first, and at most


class _Kind(IntEnum):
    waiting = 0
    sending = 1
    finished = 2


@dataclass(frozen=True)
class News:
    """A task that is done, and its rows for each server; none where nobody reads them."""

    task: Task
    rows: list[Tensor]  # by server


class Ghosts:
    """Rounds in which servers tell each other what they have done. They run on a thread, while servers compute."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._turns = Turns(ahead=1, name="headrace.Ghosts", device=torch.device("cpu"))
        self._idle = _IDLE[0]

    def begin(self, news: list[News], *, finished: bool) -> Pending[tuple[list[tuple[Task, Tensor]], bool]]:
        """Start a round. It gives the tasks of other servers with their rows as bytes; and whether all servers have finished."""
        return self._turns.submit(lambda: self._round(news, finished=finished))

    def close(self) -> None:
        """End the thread; every server, after the last round."""
        self._turns.close()

    def _round(self, news: list[News], *, finished: bool) -> tuple[list[tuple[Task, Tensor]], bool]:
        exchange = self._exchange
        exchange.begin()
        others = [server != exchange.rank for server in range(exchange.size)]
        kind = _Kind.sending if news else _Kind.finished if finished else _Kind.waiting
        kinds, tasks = exchange.counts("keys", kind, [len(news) * other for other in others])
        if _Kind.sending not in kinds:
            ended = all(kind == _Kind.finished for kind in kinds)
            if not ended:
                time.sleep(self._idle)
                self._idle = min(2 * self._idle, _IDLE[1])
            return [], ended
        self._idle = _IDLE[0]
        keys = self._keys(news, tasks)
        sent = [[_bytes(one.rows[server]) for one in news] if others[server] else [] for server in range(exchange.size)]
        sizes = [torch.tensor([len(rows) for rows in of], dtype=torch.int64) for of in sent]
        sizes = self._all_to_all("keys", sizes, tasks)
        lengths = [sum(map(len, of)) for of in sent]
        receiving = [int(size.sum()) for size in sizes]
        flat = torch.cat([torch.empty(0, dtype=torch.uint8), *(rows for of in sent for rows in of)])
        received = exchange.all_to_all("rows", flat, sending=lengths, receiving=receiving).wait()
        rows = received.split(torch.cat(sizes).tolist())
        return list(zip(keys, rows, strict=True)), False

    def _keys(self, news: list[News], tasks: list[int]) -> list[Task]:
        told = [[one.task.epoch, one.task.layer, one.task.direction, one.task.interval] for one in news]
        key = torch.tensor(told, dtype=torch.int64).view(-1, _KEY)
        own = self._exchange.rank
        parts = [key[:0] if server == own else key for server in range(self._exchange.size)]
        received = torch.cat(self._all_to_all("keys", parts, tasks))
        return [Task(epoch, layer, Direction(direction), interval) for epoch, layer, direction, interval in received.tolist()]

    def _all_to_all(self, phase: str, parts: list[Tensor], receiving: list[int]) -> list[Tensor]:
        sending = [len(part) for part in parts]
        transfer = self._exchange.all_to_all(phase, torch.cat(parts), sending=sending, receiving=receiving)
        return list(transfer.wait().split(receiving))


def _bytes(rows: Tensor) -> Tensor:
    return rows.contiguous().view(-1).view(torch.uint8)
