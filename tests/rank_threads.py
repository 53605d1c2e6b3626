"""Ranks that are threads of one process, for what has no need of a GPU or of processes."""

import threading
from collections import defaultdict
from types import SimpleNamespace

import torch

from headrace.ranks import Ranks, Traffic


class ThreadRanks(Ranks):
    """One rank; all of them share `board` and meet at `meeting`."""

    def __init__(self, rank, size, board, meeting):
        self.rank, self.size, self.local_rank = rank, size, rank
        self.machines = ["this one"] * size
        self._board, self._meeting = board, meeting

    def all_gather(self, value):
        self._board[self.rank] = value
        self._meeting.wait()
        values = list(self._board)
        self._meeting.wait()
        return values


class ThreadExchange:
    """What `Exchange` does, between threads."""

    def __init__(self, ranks):
        self._ranks, self.rank, self.size, self.wire = ranks, ranks.rank, ranks.size, torch.device("cpu")
        self.traffic = defaultdict(Traffic)
        self.exchanges = 0

    def begin(self):
        self.exchanges += 1

    def counts(self, phase, kind, counts):
        told = self._ranks.all_gather((kind, list(counts)))
        self.traffic[phase].sent += 8 * (self.size - 1)
        self.traffic[phase].received += 8 * (self.size - 1)
        return [theirs for theirs, _ in told], [theirs[self.rank] for _, theirs in told]

    def agree(self, same, *, problem, told):
        everyone = self._ranks.all_gather((same, problem, told))
        for rank, (_, theirs, _) in enumerate(everyone):
            if theirs is not None:
                raise ValueError(f"rank {rank}: {theirs}")
        for rank, (theirs, _, _) in enumerate(everyone):
            assert theirs == everyone[0][0], f"rank {rank} disagrees"
        return {name: [theirs[name] for _, _, theirs in everyone] for name in told}

    def all_to_all(self, phase, tensor, *, sending, receiving):
        received = torch.cat([parts[self.rank] for parts in self._ranks.all_gather(tensor.clone().split(list(sending)))])
        assert len(received) == sum(receiving)
        row = tensor.shape[1:].numel() * tensor.element_size()
        self.traffic[phase].sent += (sum(sending) - sending[self.rank]) * row
        self.traffic[phase].received += (sum(receiving) - receiving[self.rank]) * row
        return SimpleNamespace(wait=lambda: received)

    def gathering(self, phase, tensor):
        gathered = self.all_gather(phase, tensor)
        return SimpleNamespace(wait=lambda: gathered)

    def all_gather(self, phase, tensor):
        self.traffic[phase].sent += (self.size - 1) * tensor.numel() * tensor.element_size()
        self.traffic[phase].received += (self.size - 1) * tensor.numel() * tensor.element_size()
        return torch.cat(self._ranks.all_gather(tensor.clone()))


def on_every_rank(size, work):
    """Return what `work(ranks)` returned or raised on each rank."""
    board, meeting, results = [None] * size, threading.Barrier(size, timeout=60), [None] * size

    def run(rank):
        try:
            results[rank] = work(ThreadRanks(rank, size, board, meeting))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), name=str(rank)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
