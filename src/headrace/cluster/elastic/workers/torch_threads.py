"""One thread of torch: the order of sums, and so the bits of a result, then do not depend on the machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headrace._arrays import one_thread


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Compute with one thread here, of torch and of Headrace's kernels, and afterwards with as many as before."""
    with one_thread():
        before = torch.get_num_threads()
        if before == 1:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def keep_one_torch_thread() -> None:
    """Compute with one thread of torch in this thread for good. Threads that begin later keep their number.

    `set_num_threads` changes the number of the calling thread, and the one that new threads begin with.
    """
    with _starting:
        default = torch.get_num_threads()  # of a new thread, as this one is
        torch.set_num_threads(1)
        other = threading.Thread(target=torch.set_num_threads, args=(default,))
        other.start()
        other.join()


_starting = threading.Lock()
