"""Processes that build a store together: a word from each to all, and errors that reach every one of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SHARED_MEMORY = Path("/dev/shm")
T = TypeVar("T")


class Ranks(Protocol):
    """Processes that act together, one for each GPU. A `torch.distributed` group is made into this; others may do without one."""

    rank: int  # of this process, from 0
    size: int

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank. Every rank calls it, and waits for the others."""
        ...


class GroupRanks:
    """The ranks of a process group."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group: give the one it is in, or None")
        self._group, self._device = group, device

    def all_gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        with torch.cuda.device(self._device):  # through which NCCL would send it
            dist.all_gather_object(values, value, group=self._group)
        return values


def ranks_of(group: dist.ProcessGroup | Ranks, device: torch.device) -> Ranks:
    """What was given as `group=`, as ranks."""
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return GroupRanks(group, device)
    if not all(hasattr(group, name) for name in ("rank", "size", "all_gather")):
        raise ValueError(f"group must be a torch.distributed process group or have rank, size and all_gather, not {group!r}")
    return group  # type: ignore[return-value]


def together(ranks: Ranks, work: Callable[[], T]) -> list[T]:
    """What `work` came to on every rank, by rank. If it failed on one it is an error on all, so that none waits in vain."""
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
            raise RuntimeError(f"rank {rank} failed, so this store cannot be built: {text}")
    return [answer for answer, _ in answers]


def machine() -> str:
    """The same for two processes if they see one kernel and one shared memory: containers of a machine may not."""
    boot = _BOOT.read_text().strip() if _BOOT.exists() else platform.node()
    return f"{boot} {os.stat(_SHARED_MEMORY).st_dev if _SHARED_MEMORY.exists() else ''}"
