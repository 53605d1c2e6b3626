"""Memory that torch frees, kept for its next tensors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace import _native
from headrace.pipeline.workers import free_in_child

_lock = free_in_child(threading.Lock())
_holders = 0  # of this process, whose one heap it is about
_frugal = 0  # blocks in which nothing is kept all the same


@contextmanager
def kept_memory() -> Iterator[None]:
    """While in this block, memory of freed tensors stays with the process and serves the next ones.

    A training step makes and frees tensors of hundreds of megabytes, and fresh pages cost as much as the arithmetic (measured:
    docs/training.md). The price is that resident memory stays at its peak, about a quarter above what is in use; it goes back to
    the system when the last such block ends.
    """
    global _holders
    with _lock:
        _holders += 1
        if _holders == 1 and not _frugal:
            _native.keep_freed_memory(True)
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0:
                _native.keep_freed_memory(False)


@contextmanager
def returned_memory() -> Iterator[None]:
    """While in this block, freed memory goes back to the system, also within `kept_memory`.

    For work under a budget: what it takes and frees must not stay beside what is taken afterwards.
    """
    global _frugal
    with _lock:
        _frugal += 1
        if _frugal == 1:
            _native.keep_freed_memory(False)
    try:
        yield
    finally:
        with _lock:
            _frugal -= 1
            if _frugal == 0:
                _native.keep_freed_memory(False)  # what was freed since
                if _holders:
                    _native.keep_freed_memory(True)
