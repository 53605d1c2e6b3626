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


@dataclass(frozen=True)
class Heard:
    """What a round brought: tasks of other servers with their rows as bytes, and sums of gradients."""

    tasks: list[tuple[Task, Tensor]]
    sums: Tensor | None  # [steps, numbers]
    ended: bool  # whether all servers have finished


class Ghosts:
    """Rounds in which servers tell each other what they have done. They run on a thread, while servers compute.

    numbers: of a sum of gradients, where servers tell each other theirs at any time (flow async); 0 where they do not.
    """

    def __init__(self, exchange: Exchange, *, numbers: int = 0, dtype: torch.dtype = torch.float32) -> None:
        self._numbers, self._dtype = numbers, dtype
        self._exchange = exchange
        self._turns = Turns(ahead=1, name="headrace.Ghosts", device=torch.device("cpu"))
        self._idle = _IDLE[0]

    def begin(self, news: list[News], sums: list[Tensor], *, finished: bool) -> Pending[Heard]:
        """Start a round with what there is to tell: tasks, and sums of gradients. All servers begin the same rounds."""
        return self._turns.submit(lambda: self._round(news, sums, finished=finished))

    def close(self) -> None:
        """End the thread; every server, after the last round."""
        self._turns.close()

    def _round(self, news: list[News], sums: list[Tensor], *, finished: bool) -> Heard:
        exchange = self._exchange
        exchange.begin()
        others = [server != exchange.rank for server in range(exchange.size)]
        kind = _Kind.sending if news or sums else _Kind.finished if finished else _Kind.waiting
        kinds, tasks = exchange.counts("keys", kind, [len(news) * other for other in others])
        if _Kind.sending not in kinds:
            ended = all(kind == _Kind.finished for kind in kinds)
            if not ended:
                time.sleep(self._idle)
                self._idle = min(2 * self._idle, _IDLE[1])
            return Heard([], None, ended)
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
        return Heard(list(zip(keys, rows, strict=True)), self._sums(sums), ended=False)

    def _sums(self, own: list[Tensor]) -> Tensor | None:  # -> [steps, numbers]
        """The sums of the other servers, in their order."""
        if not self._numbers:
            return None
        exchange, sent = self._exchange, torch.zeros(len(own), self._numbers, dtype=self._dtype)
        for place, total in enumerate(own):
            sent[place] = total
        sending = [0 if server == exchange.rank else len(own) for server in range(exchange.size)]
        _, receiving = exchange.counts("keys", _Kind.sending, sending)
        copies = torch.cat([sent[: sending[server]] for server in range(exchange.size)])
        return exchange.all_to_all("gradients", copies, sending=sending, receiving=receiving).wait()

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
