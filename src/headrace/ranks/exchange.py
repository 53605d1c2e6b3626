"""Counts, ids and rows between ranks: three collectives an exchange, each byte counted, an absent rank named."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_KIND_BITS = 2


class Kind(IntEnum):
    """What a rank came to an exchange for."""

    gather = 0
    add = 1
    finished = 2  # it has nothing to ask any more, and answers the others


@dataclass
class Traffic:
    """Bytes between this rank and others. What a rank keeps for itself, and the transport's own framing, do not count."""

    exchanges: int = 0
    counts_sent: int = 0
    counts_received: int = 0
    ids_sent: int = 0
    ids_received: int = 0
    rows_sent: int = 0
    rows_received: int = 0


class Transfer:
    """Rows that are on their way, in `buffer` once `wait()` returned."""

    def __init__(self, sent: Tensor, buffer: Tensor, work: Any, exchange: Exchange) -> None:
        self.sent = sent  # must live until it has left
        self.buffer = buffer
        self._work = work
        self._exchange = exchange

    def wait(self) -> Tensor:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._exchange.explain(error) from error
        return self.buffer


class Exchange:
    """The collectives of a store over ranks, on process groups of its own so that they never mix with a trainer's.

    Counts always go through gloo, since the host needs them to size the buffers: so an absent rank is noticed there, by a
    timeout that names it, also where ids and rows go through NCCL. To be used from one thread.
    """

    def __init__(self, *, group: dist.ProcessGroup | None, device: torch.device, timeout: float) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "torch.distributed is not ready: call torch.distributed.init_process_group first (torchrun sets its environment)"
            )
        if timeout <= 0:
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout}")
        self.members = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.timeout = timeout
        self.traffic = Traffic()
        self._control = self._new_group(group, "gloo")
        over_gpu = device.type == "cuda" and "nccl" in str(dist.get_backend_config(group))
        self.wire = device if over_gpu else torch.device("cpu")
        self._payload = self._new_group(group, "nccl") if over_gpu else self._control

    def counts(self, kind: Kind, counts: Sequence[int]) -> tuple[list[Kind], list[int]]:
        """Tell every rank what for, and how many ids it will get; learn the same. The first collective, 8 bytes a rank."""
        self.traffic.exchanges += 1
        sent = torch.tensor([count << _KIND_BITS | kind for count in counts], dtype=torch.int64)
        received = torch.empty_like(sent)
        try:
            dist.all_to_all_single(received, sent, group=self._control)
        except RuntimeError as error:
            raise self.explain(error) from error
        self.traffic.counts_sent += 8 * (self.ranks - 1)
        self.traffic.counts_received += 8 * (self.ranks - 1)
        words = received.tolist()
        kinds = [Kind(word & (1 << _KIND_BITS) - 1) for word in words]
        active = {k: kinds.index(k) for k in kinds if k != Kind.finished}
        if len(active) > 1:
            names = ", ".join(f"rank {rank} called {k.name}" for k, rank in active.items())
            raise RuntimeError(f"exchange {self.traffic.exchanges}: {names}. All ranks must make the same calls in the same order")
        return kinds, [word >> _KIND_BITS for word in words]

    def ids(self, ids: Tensor, *, sending: list[int], receiving: list[int]) -> Tensor:
        """Ids, grouped by rank, to their ranks. The second collective."""
        received = ids.new_empty(sum(receiving))
        try:
            dist.all_to_all_single(received, ids, receiving, sending, group=self._payload)
        except RuntimeError as error:
            raise self.explain(error) from error
        self.traffic.ids_sent += self._to_others(sending) * ids.element_size()
        self.traffic.ids_received += self._to_others(receiving) * ids.element_size()
        return received

    def rows(
        self, rows: Tensor, *, sending: list[int], receiving: list[int]
    ) -> Transfer:  # [sum(sending), d] -> [sum(receiving), d]
        """Rows, grouped by rank, to their ranks. The third collective; it runs on while the caller does other things."""
        received = rows.new_empty((sum(receiving), rows.shape[1]))
        row_bytes = rows.shape[1] * rows.element_size()
        try:  # as bytes, which every backend carries
            work = dist.all_to_all_single(
                received.view(torch.uint8), rows.view(torch.uint8), receiving, sending, group=self._payload, async_op=True
            )
        except RuntimeError as error:
            raise self.explain(error) from error
        self.traffic.rows_sent += self._to_others(sending) * row_bytes
        self.traffic.rows_received += self._to_others(receiving) * row_bytes
        return Transfer(rows, received, work, self)

    def agree(self, same: dict[str, str], *, problem: str | None, told: dict[str, int]) -> dict[str, list[int]]:
        """What every rank told; raises on all ranks alike if `same` differs between them, or if one has a problem."""
        everyone: list[Any] = [None] * self.ranks
        try:
            dist.all_gather_object(everyone, (same, problem, told), group=self._control)
        except RuntimeError as error:
            raise self.explain(error) from error
        for rank, (_, theirs, _) in enumerate(everyone):
            if theirs is not None:
                raise ValueError(f"rank {rank}: {theirs}")
        for name, first in everyone[0][0].items():
            for rank, (facts, _, _) in enumerate(everyone):
                if facts[name] != first:
                    raise ValueError(f"ranks disagree on the {name}: rank 0 has {first}, rank {rank} has {facts[name]}")
        return {name: [theirs[name] for _, _, theirs in everyone] for name in told}

    def report(self, error: BaseException) -> None:
        """Leave a note for the other ranks, who will miss this one: what went wrong here."""
        with suppress(Exception):
            self._notes().set(self._key(self.rank), f"failed: {error}")

    def explain(self, error: RuntimeError) -> Exception:
        """The error of a collective, with the rank that did not come: ranks that fail here say so, the others are absent."""
        try:
            notes = self._notes()
            if not notes.check([self._key(self.rank)]):
                notes.set(self._key(self.rank), "came")
            deadline = monotonic() + min(self.timeout, 10.0)
            others = [rank for rank in range(self.ranks) if rank != self.rank]
            while (absent := [r for r in others if not notes.check([self._key(r)])]) and monotonic() < deadline:
                sleep(0.02)
            said = {r: notes.get(self._key(r)).decode() for r in others if r not in absent}
        except Exception:
            return RuntimeError(f"{self._where()} failed, and the process that hosts the rendezvous does not answer: {error}")
        broken = [f"rank {rank} {note}" for rank, note in said.items() if note != "came"]
        if absent:
            names = ("ranks " if len(absent) > 1 else "rank ") + ", ".join(map(str, absent))
            return TimeoutError(
                f"{self._where()}: {names} did not come within {self.timeout:g} s. Every rank must make the same calls of gather, "
                f"prefetch, add_ and finish; one without a batch passes empty ids, one that has no more calls finish(). ({error})"
            )
        if broken:
            return RuntimeError(f"{self._where()}: {'; '.join(broken)}")
        return TimeoutError(f"{self._where()}: all ranks came, but not within {self.timeout:g} s of one another ({error})")

    def close(self) -> None:
        """Give up the process groups. No rank may still be in an exchange."""
        for group in {self._control, self._payload}:
            dist.destroy_process_group(group)

    def _new_group(self, group: dist.ProcessGroup | None, backend: str) -> dist.ProcessGroup:
        made = dist.new_group(
            ranks=None if group is None else self.members,
            backend=backend,
            timeout=timedelta(seconds=self.timeout),
            use_local_synchronization=group is not None,  # processes outside `group` need not take part
        )
        assert isinstance(made, dist.ProcessGroup)
        return made

    def _to_others(self, counts: list[int]) -> int:
        return sum(counts) - counts[self.rank]

    def _where(self) -> str:
        return f"exchange {self.traffic.exchanges} of rank {self.rank}"

    def _notes(self) -> Any:
        return dist.distributed_c10d.PrefixStore(f"headrace/{self._control.group_name}", dist.distributed_c10d._get_default_store())

    def _key(self, rank: int) -> str:
        return f"rank {rank}"
