"""`Exchange`: collectives of one user, their bytes counted by phase, an absent rank named."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from enum import IntEnum
from time import monotonic, perf_counter, sleep
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from headrace.ranks.process import Process, RankGoneError, ended, told_gone
from headrace.ranks.ranks import Ranks

_KIND_BITS = 8
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name changed with torch 2.13
K = TypeVar("K", bound=IntEnum)


@dataclass
class Traffic:
    """Bytes between this rank and others. What a rank keeps for itself, and the transport's own framing, do not count.

    seconds: that the caller stood in it, waiting for others included.
    """

    sent: int = 0
    received: int = 0
    seconds: float = field(default=0.0, compare=False, repr=False)


class Transfer:
    """A tensor that is on its way. `wait()` returns it once all of it has arrived."""

    def __init__(self, sent: Tensor, buffer: Tensor, work: Any, exchange: Exchange, phase: str) -> None:
        self._sent = sent  # must live until it has left
        self._buffer = buffer
        self._work = work
        self._exchange, self._phase = exchange, phase

    def wait(self) -> Tensor:
        with self._exchange.timed(self._phase):
            self._work.wait()
        return self._buffer


class Exchange:
    """Collectives on process groups of their own, so that they never mix with those of a trainer or of another exchange.

    A user names its phases ("ids", "rows"), under which `traffic` counts bytes, and what ranks may come for (an `IntEnum` of kinds,
    told with the counts). Counts always go through gloo, since the host needs them to size the buffers: so an absent rank is
    noticed there, by a timeout that names it, also where tensors go through NCCL. All ranks build it together, make the same calls
    in the same order, each from one thread.

    group: a process group, `GroupRanks`, or None for all processes of the job.
    device: where the caller's tensors are. With NCCL in the group they travel between GPUs, otherwise through host memory.
    wire: the device that tensors must be on when they are sent.
    advice: a sentence for the error that names an absent rank: what its user may have done wrong.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | Ranks | None = None,
        *,
        device: torch.device | str = "cpu",
        timeout: float = 300.0,
        advice: str = "Every rank must make the same calls in the same order",
    ) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "torch.distributed is not ready: call torch.distributed.init_process_group first (torchrun sets its environment)"
            )
        if timeout <= 0:
            raise ValueError(f"timeout must be a positive number of seconds, not {timeout}")
        members = getattr(group, "group", group)
        if members is not None and not isinstance(members, dist.ProcessGroup):
            raise ValueError(f"group must be a process group or GroupRanks, not {type(group).__name__}: one rank has no exchange")
        device = torch.device(device)
        self.members = dist.get_process_group_ranks(members if members is not None else dist.group.WORLD)
        self.rank, self.size = dist.get_rank(members), dist.get_world_size(members)
        self.timeout, self.advice = timeout, advice
        self.exchanges = 0
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        self._of_all = len(self.members) == dist.get_world_size()
        self._control = self._new_group("gloo")
        over_gpu = device.type == "cuda" and "nccl" in str(dist.get_backend_config(members))
        self.wire = device if over_gpu else torch.device("cpu")
        self._payload = self._new_group("nccl") if over_gpu else self._control
        self._processes = self._met()

    def begin(self) -> None:
        """Start another exchange: errors tell its number."""
        self.exchanges += 1

    def counts(self, phase: str, kind: K, counts: Sequence[int]) -> tuple[list[K], list[int]]:  # [size] -> [size], [size]
        """Tell every rank what this one came for and how much it will get; return what they told. 8 bytes for each rank."""
        if not 0 <= kind < 1 << _KIND_BITS:
            raise ValueError(f"kinds must be numbers from 0 to {(1 << _KIND_BITS) - 1}, and {kind!r} is not")
        sent = torch.tensor([count << _KIND_BITS | kind for count in counts], dtype=torch.int64)
        received = torch.empty_like(sent)
        with self.timed(phase):
            dist.all_to_all_single(received, sent, group=self._control)
        self._count(phase, 8 * (self.size - 1), 8 * (self.size - 1))
        words = received.tolist()
        return [type(kind)(word & (1 << _KIND_BITS) - 1) for word in words], [word >> _KIND_BITS for word in words]

    def all_to_all(
        self, phase: str, tensor: Tensor, *, sending: Sequence[int], receiving: Sequence[int]
    ) -> Transfer:  # [sum(sending), ...] -> [sum(receiving), ...]
        """Send `sending[r]` rows of `tensor` to every rank r, in order of ranks. It runs on while the caller does other things."""
        received = tensor.new_empty((sum(receiving), *tensor.shape[1:]))
        row_bytes = tensor.shape[1:].numel() * tensor.element_size()
        with self.explaining():
            work = dist.all_to_all_single(
                _as_bytes(received), _as_bytes(tensor), list(receiving), list(sending), group=self._payload, async_op=True
            )
        others_get = sum(sending) - sending[self.rank]
        others_send = sum(receiving) - receiving[self.rank]
        self._count(phase, others_get * row_bytes, others_send * row_bytes)
        return Transfer(tensor, received, work, self, phase)

    def all_gather(self, phase: str, tensor: Tensor) -> Tensor:  # [n, ...] -> [size * n, ...]
        """Return the tensors of all ranks, one after another. They must have the same shape."""
        return self.gathering(phase, tensor).wait()

    def gathering(self, phase: str, tensor: Tensor) -> Transfer:  # [n, ...] -> [size * n, ...]
        """As `all_gather`. It runs on while the caller does other things."""
        tensor = tensor.contiguous()
        gathered = tensor.new_empty((self.size * len(tensor), *tensor.shape[1:]))
        with self.explaining():
            work = _all_gather(_as_bytes(gathered), _as_bytes(tensor), group=self._payload, async_op=True)
        size = (self.size - 1) * tensor.numel() * tensor.element_size()
        self._count(phase, size, size)
        return Transfer(tensor, gathered, work, self, phase)

    def agree(self, same: dict[str, str], *, problem: str | None, told: dict[str, int]) -> dict[str, list[int]]:
        """Return what every rank told; raise on all ranks alike if `same` differs between them, or if one has a problem."""
        everyone: list[Any] = [None] * self.size
        with self.explaining():
            dist.all_gather_object(everyone, (same, problem, told), group=self._control)
        for rank, (_, theirs, _) in enumerate(everyone):
            if theirs is not None:
                raise ValueError(f"rank {rank}: {theirs}")
        for rank, (facts, _, _) in enumerate(everyone):
            for name in everyone[0][0] | facts:
                ours, theirs = (those.get(name, "none") for those in (everyone[0][0], facts))
                if ours != theirs:
                    raise ValueError(f"ranks disagree on the {name}: rank 0 has {ours}, rank {rank} has {theirs}")
        return {name: [theirs[name] for _, _, theirs in everyone] for name in told}

    def report(self, error: BaseException) -> None:
        """Leave a note for the other ranks, who will miss this one: what went wrong on it."""
        with suppress(Exception):
            self._notes().set(self._key(self.rank), f"failed: {error}")

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the seconds of a phase, and explain what fails in it."""
        begin = perf_counter()
        with self.explaining():
            yield
        self.traffic[phase].seconds += perf_counter() - begin

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raise what `explain` says in place of a collective's own error."""
        try:
            yield
        except RuntimeError as error:
            raise self.explain(error) from error

    def explain(self, error: RuntimeError) -> Exception:
        """Name the rank that made a collective fail: ranks that see the failure leave a note, those that leave none are absent.

        An absent rank whose process has ended is named at once. Where that cannot be seen, on another machine, it has a moment.
        """
        timed_out = "timed out" in str(error).lower()
        deadline = monotonic() + min(self.timeout, 10.0 if timed_out else 2.0)
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            notes = self._notes()
            if not notes.check([self._key(self.rank)]):
                notes.set(self._key(self.rank), "came")
            while (absent := [r for r in others if not notes.check([self._key(r)])]) and monotonic() < deadline:
                if ended(self._processes, absent):
                    break
                sleep(0.02)
            said = {r: notes.get(self._key(r)).decode() for r in others if r not in absent}
        except Exception:
            if gone := ended(self._processes, others):
                return self._gone(gone, error)
            return RuntimeError(f"{self._where()} failed, and the process that hosts the rendezvous does not answer: {error}")
        broken = [f"rank {rank} {note}" for rank, note in said.items() if note != "came"]
        if gone := ended(self._processes, absent):
            return self._gone(gone, error)
        if absent and not timed_out and all(self._processes[rank].state() == "unknown" for rank in absent):
            return self._gone(absent, error)
        if absent:
            names = ("ranks " if len(absent) > 1 else "rank ") + ", ".join(map(str, absent))
            return TimeoutError(f"{self._where()}: {names} did not come within {self.timeout:g} s. {self.advice}. ({error})")
        if broken:
            return RuntimeError(f"{self._where()}: {'; '.join(broken)}")
        return TimeoutError(f"{self._where()}: all ranks came, but not within {self.timeout:g} s of one another ({error})")

    def close(self) -> None:
        """Give up the process groups. No rank may still be in an exchange."""
        # Torch names a group of some ranks by them and by how many groups there are: the next one of these ranks would get the
        # name again, and find the addresses of this one in the store. So it stays until the job's own group ends.
        for group in {self._control, self._payload} if self._of_all else ():
            dist.destroy_process_group(group)

    def _new_group(self, backend: str) -> dist.ProcessGroup:
        own = dist.new_group(
            ranks=None if self._of_all else self.members,
            backend=backend,
            timeout=timedelta(seconds=self.timeout),
            use_local_synchronization=not self._of_all,  # the others need not take part
        )
        assert isinstance(own, dist.ProcessGroup)
        return own

    def _met(self) -> list[Process]:
        """The processes of all ranks, from the job's store."""
        notes = self._notes()
        notes.set(f"process {self.rank}", json.dumps(asdict(Process.current())))
        return [Process(**json.loads(text)) for text in notes.multi_get([f"process {rank}" for rank in range(self.size)])]

    def _gone(self, ranks: list[int], error: RuntimeError) -> RuntimeError:
        return RankGoneError(f"{self._where()}: {told_gone(self._processes, ranks)} ({error})")

    def _count(self, phase: str, sent: int, received: int) -> None:
        self.traffic[phase].sent += sent
        self.traffic[phase].received += received

    def _where(self) -> str:
        return f"exchange {self.exchanges} of rank {self.rank}"

    def _notes(self) -> Any:
        return dist.distributed_c10d.PrefixStore(f"headrace/{self._control.group_name}", dist.distributed_c10d._get_default_store())

    def _key(self, rank: int) -> str:
        return f"rank {rank}"


def _as_bytes(tensor: Tensor) -> Tensor:
    """The rows of a tensor as bytes, which every backend carries.  # [n, ...] -> [n, bytes of a row]"""
    if tensor.dim() == 1:
        return tensor.unsqueeze(1).view(torch.uint8)
    return tensor.view(len(tensor), tensor.shape[1:].numel()).view(torch.uint8)
