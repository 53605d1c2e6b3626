"""`join`: meet the other processes that torchrun started, or find out that there are none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from headrace import _device
from headrace.ranks.process import RankGoneError, machine
from headrace.ranks.ranks import Alone, GroupRanks, Ranks

_joined = count()  # all ranks join equally often
_jobs: dict[tuple[Any, ...], tuple[Any, int, int]] = {}  # the store of the job that this process is in
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_WAIT = "HEADRACE_JOIN_SECONDS"  # how long ranks wait for each other at the beginning


@contextmanager
def join(device: str | torch.device = "cpu", *, timeout: float = 300.0) -> Iterator[Ranks]:
    """Yield the ranks of this job: those of torchrun's environment, or one process alone where that is not set.

    The process group is gloo, with NCCL for tensors on GPUs if `device` is a GPU and no two ranks have the same one: `"cuda"` then
    means the GPU of LOCAL_RANK, which becomes the current one. Ranks that share a GPU have gloo alone. A process group that exists
    already is used as it is, and stays. `timeout`: the most seconds that a collective waits for another rank. The environment
    variable HEADRACE_JOIN_SECONDS says how long ranks wait for one that has not come yet (300): after that TimeoutError is raised.

    >>> from headrace.ranks import join
    >>> with join() as ranks:
    ...     ranks.rank, ranks.size
    (0, 1)
    """
    if dist.is_available() and dist.is_initialized():
        assert dist.group.WORLD is not None
        yield GroupRanks(dist.group.WORLD, _device_of(device, int(os.environ.get("LOCAL_RANK", "0"))))
        return
    if not all(name in os.environ for name in _TORCHRUN):
        yield Alone()
        return
    if timeout <= 0:
        raise ValueError(f"timeout must be a positive number of seconds, not {timeout}")
    chosen = _device_of(device, int(os.environ.get("LOCAL_RANK", "0")))
    limit = timedelta(seconds=timeout)
    store, rank, size, gpus = _meet(_gpu_name(chosen))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    _connect(_backend(gpus), store, rank, size, limit)
    store.set_timeout(limit)
    assert dist.group.WORLD is not None
    in_step = size == 1
    try:
        yield GroupRanks(dist.group.WORLD, chosen)
        in_step = True
    finally:
        if in_step:  # after an error other ranks may still be in a collective, and NCCL would wait for them
            dist.destroy_process_group()


def device_of(ranks: Ranks, device: str | torch.device) -> torch.device:
    """Return the device that is meant on this rank: `"cuda"` is the GPU of its local rank; ranks share where GPUs are fewer."""
    return _device_of(device, ranks.local_rank)


def _device_of(device: str | torch.device, local_rank: int) -> torch.device:
    chosen = torch.device(device)
    if chosen.type == "cuda" and chosen.index is None and torch.cuda.is_available():
        chosen = torch.device("cuda", local_rank % torch.cuda.device_count())
    return _device.device_of(chosen)


def _gpu_name(device: torch.device) -> str:
    """Name the GPU `device` so that no other GPU of any machine has the name; empty for a CPU."""
    if device.type != "cuda":
        return ""
    return f"{machine()} {torch.cuda.get_device_properties(device).uuid}"


def _backend(gpus: list[str]) -> str:
    """Choose the backend for ranks with these GPUs: NCCL needs one GPU for each rank."""
    one_each = all(gpus) and len(set(gpus)) == len(gpus)
    return "cpu:gloo,cuda:nccl" if one_each and dist.is_nccl_available() else "gloo"


def _meet(gpu: str) -> tuple[PrefixStore, int, int, list[str]]:
    """The job's store, this rank, how many there are, and the GPUs of all; when all have come."""
    address, seconds = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", _wait_seconds()
    try:
        job, rank, size = _job(address, seconds)
        job.set_timeout(timedelta(seconds=seconds))
        store = PrefixStore(f"headrace/{next(_joined)}", job)  # a second join must not read what the first one wrote
        return store, rank, size, _told_by_all(store, rank, size, gpu)
    except dist.DistError as error:
        others = int(os.environ["WORLD_SIZE"]) - 1
        why = str(error).partition("\n")[0].rstrip(".")
        raise TimeoutError(
            f"rank {os.environ['RANK']} did not meet the {others} others at {address} within {seconds:g} s ({why}): see how they "
            f"ended, or let it wait longer by {_WAIT}"
        ) from None


def _connect(backend: str, store: PrefixStore, rank: int, size: int, limit: timedelta) -> None:
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    except RuntimeError as error:  # gloo's, when a rank that was there is gone
        why = str(error).partition("\n")[0].rstrip(".")
        raise RankGoneError(
            f"rank {rank} lost another of the {size} while they connected ({why}): see how the others ended"
        ) from None


def _job(address: str, seconds: float) -> tuple[Any, int, int]:
    """The job's store, this rank and how many there are. The store stays for the next join: rank 0 may host it, and another rank
    that joins again at once would speak to one that is about to close."""
    key = (os.getpid(), address, os.environ["RANK"], os.environ["WORLD_SIZE"])
    if key not in _jobs:
        _jobs.clear()
        _jobs[key] = next(rendezvous("env://", timeout=timedelta(seconds=seconds)))
    return _jobs[key]


def _wait_seconds() -> float:
    text = os.environ.get(_WAIT, "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError(f"{_WAIT} must be a number of seconds, not {text!r}")
    return seconds


def _told_by_all(store: Any, rank: int, size: int, text: str) -> list[str]:
    """Exchange a text through the job's store, before there is a process group."""
    store.set(f"headrace/gpu/{rank}", text or "none")
    said = [store.get(f"headrace/gpu/{other}").decode() for other in range(size)]
    return ["" if text == "none" else text for text in said]
