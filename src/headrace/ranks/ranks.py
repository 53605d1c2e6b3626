"""`Ranks`: the processes of a job, the machine of each, and small values that all of them learn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

from headrace.ranks.process import Process, RankGoneError, ended, machine, told_gone

T = TypeVar("T")


class Ranks(Protocol):
    """Processes that act together. `join` returns them; a `torch.distributed` group becomes one by `GroupRanks`.

    All methods are collective: every rank calls them, in the same order, and waits for the others. Values are pickled, so they
    should be small.
    """

    rank: int  # of this process, from 0
    size: int
    local_rank: int  # of this process among those of its machine: the number of its GPU
    machines: Sequence[str]  # of every rank: equal for two ranks if they can share memory

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank."""
        ...

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Return the value of rank `source`; those of the other ranks are ignored."""
        return self.all_gather(value)[source]

    def barrier(self) -> None:
        """Return once all ranks have called this."""
        self.all_gather(None)


class Alone(Ranks):
    """One process, which needs no `torch.distributed`.

    >>> from headrace.ranks import Alone
    >>> Alone().all_gather("a value")
    ['a value']
    """

    def __init__(self) -> None:
        self.rank, self.size, self.local_rank = 0, 1, 0
        self.machines = [machine()]

    def all_gather(self, value: Any) -> list[Any]:
        return [value]


class GroupRanks(Ranks):
    """The ranks of a process group. All of them build it together.

    `local_rank` is torchrun's LOCAL_RANK where that is set, otherwise the place among the group's ranks on this machine.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group: give the one it is in, or None")
        self.group, self._device = group, device
        self._processes: list[Process] = []
        self._processes = self.all_gather(Process.current())
        self.machines = [process.machine for process in self._processes]
        place = list(self.machines[: self.rank]).count(self.machines[self.rank])
        self.local_rank = int(os.environ.get("LOCAL_RANK", place))

    def all_gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        with self._on_device(), self._naming_who_is_gone():
            dist.all_gather_object(values, value, group=self.group)
        return values

    def broadcast(self, value: Any, source: int = 0) -> Any:
        values = [value]
        with self._on_device(), self._naming_who_is_gone():
            dist.broadcast_object_list(values, group=self.group, group_src=source)
        return values[0]

    @contextmanager
    def _naming_who_is_gone(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            others = [rank for rank in range(len(self._processes)) if rank != self.rank]
            if gone := ended(self._processes, others, seconds=0.5):
                raise RankGoneError(f"{told_gone(self._processes, gone)} ({error})") from error
            if not others:  # they have not said yet who they are
                raise RankGoneError(f"another rank ended before all had met ({error}): see how the others ended") from error
            raise

    def _on_device(self) -> Any:
        """Choose the GPU through which a group that has NCCL alone sends values."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


def ranks_of(group: dist.ProcessGroup | Ranks, device: torch.device) -> Ranks:
    """Turn a `group=` argument into ranks. An object with `rank`, `size` and `all_gather` is taken as it is."""
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return GroupRanks(group, device)
    if not all(hasattr(group, name) for name in ("rank", "size", "all_gather")):
        raise ValueError(f"group must be a torch.distributed process group or have rank, size and all_gather, not {group!r}")
    return group  # type: ignore[return-value]


def together(ranks: Ranks, work: Callable[[], T], *, consequence: str = "none can go on") -> list[T]:
    """Do `work` on every rank and return all results, by rank. An error of one rank is raised on all, so that none waits for it."""
    mine, problem = None, None
    try:
        mine = work()
    except Exception as error:
        problem = error
    answers = ranks.all_gather((mine, None if problem is None else f"{type(problem).__name__}: {problem}"))
    if problem is not None:
        raise problem
    for rank, (_, text) in enumerate(answers):
        if text is not None:
            raise RuntimeError(f"rank {rank} failed, so {consequence}: {text}")
    return [answer for answer, _ in answers]
