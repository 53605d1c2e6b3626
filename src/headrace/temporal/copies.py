"""`Copies`: the copies of the memory that trainers of a rank read and write, shared with the other ranks of its machine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from headrace.ranks import Alone, Exchange, Ranks, together
from headrace.store import ArrayStore, SharedRows
from headrace.temporal.memory import NodeMemory
from headrace.temporal.post import OtherTrainers, Post
from headrace.temporal.schedule import Schedule
from headrace.temporal.trainers import deal_trainers

K = TypeVar("K", bound=Hashable)
_CONSEQUENCE = "node memory cannot be shared"


class Copies:
    """`memories` by copy: those that this rank has trainers of. `rows` by copy: those that its machine has, each once.

    A rank does the tickets of its own trainers, and hands the turn to the rank that has the next one. So only gradients go from
    machine to machine, and for a checkpoint what rank 0 cannot see. All ranks build it together.
    """

    def __init__(
        self,
        schedule: Schedule,
        nodes: int,
        *,
        memory: int,
        mail: int,
        device: str | torch.device = "cpu",
        ranks: Ranks | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self.schedule, self.ranks, self.exchange = schedule, ranks or Alone(), exchange
        self.owners = deal_trainers(schedule.i, schedule.j, schedule.k, self.ranks.machines)
        self._opened = ExitStack()
        self.rows: dict[int, Tensor] = {}
        self.memories: dict[int, NodeMemory] = {}
        self._others: dict[int, OtherTrainers] = {}
        if not memory:
            return
        shape = (nodes, memory + mail)
        stores = self._stores(shape, torch.device(device))
        self.rows = {copy: store.rows for copy, store in stores.items()}
        owners = [self._of_copy(copy) for copy in range(schedule.k)]
        rank = self.ranks.rank
        post = Post(self.ranks) if any(len(set(of)) > 1 for of in owners) else None
        for copy, of in enumerate(owners):
            if rank in of:
                if post is not None and len(set(of)) > 1:
                    self._others[copy] = OtherTrainers(schedule, copy, self.owners, rank, post)
                self.memories[copy] = NodeMemory(
                    nodes, memory=memory, mail=mail, rows=stores[copy], copy=copy, others=self._others.get(copy)
                )
                self._opened.callback(self.memories[copy].close)
        if post is not None:
            post.start({copy: self.memories[copy].tickets for copy in self._others})
            self._opened.callback(post.close)

    @property
    def trainers(self) -> list[int]:
        """Those of this rank."""
        return [trainer for trainer, owner in enumerate(self.owners) if owner == self.ranks.rank]

    def begin(self, first: Callable[[int], int]) -> None:
        """Count on from ticket `first(copy)`, once all writes of all ranks are done. Collective."""
        self.settle()
        for copy, memory in self.memories.items():
            memory.begin(first(copy))

    def settle(self) -> None:
        """Wait until all writes are done that trainers have handed over. Collective."""
        for memory in self.memories.values():
            memory.settle()
        self.ranks.barrier()

    def collected(self, held: Mapping[K, Tensor]) -> tuple[list[Tensor], dict[K, Tensor]]:
        """On rank 0, the rows of every copy and all that ranks hold; elsewhere nothing. Collective.

        They are copies of their own: ranks may go on.
        """
        self.settle()
        rank, machines = self.ranks.rank, self.ranks.machines
        rows = {copy: rows.clone() for copy, rows in self.rows.items()} if rank == 0 else {}
        for copy in range(self.schedule.k if self.rows else 0):
            leader = self._of_copy(copy)[0]
            if machines[leader] != machines[0]:
                rows |= self._on_first({copy: self.rows[copy]} if rank == leader else {})
        everything = self._on_first(held if rank else {}) | (dict(held) if rank == 0 else {})
        self.ranks.barrier()  # rank 0 has its copy of what others may write now
        return [rows[copy] for copy in sorted(rows)], everything

    def load(self, rows: Sequence[Tensor]) -> None:
        """Put the rows of every copy in place. Collective."""
        for copy, own in self.rows.items():
            if self.ranks.rank == self._of_copy(copy)[0]:
                own.copy_(rows[copy])
        self.ranks.barrier()

    def waits(self) -> str:
        """In words, the next ticket that this rank knows of for each copy that it shares."""
        return ". ".join(others.told(self.memories[copy].tickets.state[0]) for copy, others in self._others.items())

    def close(self) -> None:
        self._opened.close()

    def _of_copy(self, copy: int) -> list[int]:
        """The ranks of a copy's trainers."""
        each = self.schedule.i * self.schedule.j
        return self.owners[copy * each : (copy + 1) * each]

    def _stores(self, shape: tuple[int, int], device: torch.device) -> dict[int, ArrayStore]:
        """Zeros for each copy of this machine, in memory that its ranks share; the names are gone when this returns."""
        ranks, machines = self.ranks, self.ranks.machines
        mine = machines[ranks.rank]
        here = [copy for copy in range(self.schedule.k) if machines[self._of_copy(copy)[0]] == mine]
        alone = machines.count(mine) == 1
        stores: dict[int, ArrayStore] = {}
        made: dict[int, SharedRows] = {}

        def build() -> dict[int, str]:
            for copy in here:
                if alone:
                    stores[copy] = ArrayStore(torch.zeros(shape, device=device))
                elif self._of_copy(copy)[0] == ranks.rank:
                    made[copy] = self._opened.enter_context(SharedRows.build(shape, torch.float32, lambda rows: None, pin=False))
            return {copy: rows.name for copy, rows in made.items()}

        def join() -> None:
            for copy in () if alone else here:
                made_here = copy in made
                stores[copy] = made[copy] if made_here else self._opened.enter_context(SharedRows.open(names[copy], pin=False))

        names = {copy: name for of_rank in together(ranks, build, consequence=_CONSEQUENCE) for copy, name in of_rank.items()}
        together(ranks, join, consequence=_CONSEQUENCE)
        for rows in made.values():
            rows.unlink()
        ranks.barrier()
        return stores

    def _on_first(self, mine: Mapping[K, Tensor]) -> dict[K, Tensor]:
        """Rows of all ranks by their names, on rank 0; what it names itself stays where it is. Collective.  # [n, d] each"""
        if self.exchange is None:
            return {}
        size, rank = self.ranks.size, self.ranks.rank
        told = self.ranks.all_gather([(name, tuple(rows.shape)) for name, rows in mine.items()])
        lengths = [sum(prod(shape) for _, shape in of_rank) for of_rank in told]
        flat = torch.cat([torch.empty(0), *(rows.reshape(-1) for rows in mine.values())])
        sending = [len(flat), *[0] * (size - 1)]
        came = self.exchange.all_to_all("checkpoint", flat, sending=sending, receiving=[0 if rank else n for n in lengths]).wait()
        if rank:
            return {}
        names = [(name, shape) for of_rank in told for name, shape in of_rank]
        parts = came.split([prod(shape) for _, shape in names])
        return {name: part.view(shape) for (name, shape), part in zip(names, parts, strict=True)}
