"""`on_first`: rank 0 works, and the others wait for it as long as it takes."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from headrace.ranks.ranks import Ranks

T = TypeVar("T")


def on_first(ranks: Ranks, work: Callable[[Callable[[], None]], T], *, seconds: float = 30.0) -> T:
    """Do `work` on rank 0, and return what it returns on all ranks. Collective.

    A collective gives up after some minutes (`join`). So `work` is given a function to call now and then: once in so many `seconds`
    it tells the others to wait on.

    >>> from headrace.ranks import Alone, on_first
    >>> on_first(Alone(), lambda alive: [alive() for _ in range(3)] and "a value")
    'a value'
    """
    if ranks.size == 1:
        return work(lambda: None)
    if ranks.rank:
        while True:
            done, result = ranks.broadcast((False, None))
            if done:
                return result  # type: ignore[no-any-return]
    told = monotonic()

    def alive() -> None:
        nonlocal told
        if monotonic() - told >= seconds:
            told = monotonic()
            ranks.broadcast((False, None))

    result = work(alive)
    ranks.broadcast((True, result))
    return result
