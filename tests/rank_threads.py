"""Ranks that are threads of one process, for what has no need of a GPU or of processes."""

import threading


class ThreadRanks:
    """One rank; all of them share `board` and meet at `barrier`."""

    def __init__(self, rank, size, board, barrier):
        self.rank, self.size, self.board, self.barrier = rank, size, board, barrier

    def all_gather(self, value):
        self.board[self.rank] = value
        self.barrier.wait()
        values = list(self.board)
        self.barrier.wait()
        return values


def on_every_rank(size, work):
    """What `work(ranks)` returned or raised on each rank."""
    board, barrier, results = [None] * size, threading.Barrier(size, timeout=60), [None] * size

    def run(rank):
        try:
            results[rank] = work(ThreadRanks(rank, size, board, barrier))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), name=str(rank)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
