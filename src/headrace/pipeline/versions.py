"""`Versions`: which version of the weights a batch reads, a pure function of its number.

Version v is what v updates have made of the weights. A batch reads one version, in its forward and in its backward pass, however
the timing falls: so a run with a delay has the bits of a sequential replay of this function.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

_STASH = 3  # batches in flight in P3 (Gandhi and Iyer, OSDI'21): its delay


@dataclass(frozen=True)
class Versions:
    """A policy. `flush` reads the newest weights; `stash` those of `delay` updates before, at least the first.

    m: batches that are summed to an update (one after the other: those of several ranks at a time count as one).

    >>> [Versions.flush().reads(t) for t in range(6)]
    [0, 1, 2, 3, 4, 5]
    >>> [Versions.stash(3).reads(t) for t in range(6)]
    [0, 0, 0, 0, 1, 2]
    >>> [Versions.double_buffer(3).reads(t) for t in range(9)]
    [0, 0, 0, 0, 0, 0, 1, 1, 1]
    """

    kind: Literal["flush", "stash", "double_buffer"] = "flush"
    delay: int = 0
    m: int = 1

    def __post_init__(self) -> None:
        if self.m < 1:
            raise ValueError(f"m must be at least 1 batch an update, not {self.m}")
        if self.delay < 0:
            raise ValueError(f"delay must not be negative, got {self.delay}")

    @classmethod
    def flush(cls, m: int = 1) -> Versions:
        """No delay: exact."""
        return cls("flush", 0, m)

    @classmethod
    def stash(cls, delay: int = _STASH, m: int = 1) -> Versions:
        """A fixed delay, as P3 has of three batches: `delay` batches may be in flight before the one that is computed."""
        return cls("stash", delay, m)

    @classmethod
    def double_buffer(cls, m: int) -> Versions:
        """A delay of one update, whose `m` batches are summed: two versions (PipeDream-2BW, Narayanan et al., ICML'21)."""
        return cls("double_buffer", 1, m)

    @classmethod
    def of(cls, text: str, m: int = 1) -> Versions:
        """From its name, as an option gives it: flush, stash, stash(2) or double_buffer.

        >>> Versions.of("stash(2)")
        Versions(kind='stash', delay=2, m=1)
        """
        if text == "flush":
            return cls.flush(m)
        if text == "double_buffer":
            return cls.double_buffer(m)
        if (named := re.fullmatch(r"stash(?:\((\d{1,3})\))?", text)) is not None:
            return cls.stash(_STASH if named[1] is None else int(named[1]), m)
        raise ValueError(f"versions must be flush, stash, stash(n) or double_buffer, not {text!r}")

    def reads(self, batch: int) -> int:
        """The version that batch number `batch` reads."""
        return self.of_update(batch // self.m)

    def of_update(self, update: int) -> int:
        """The version that the batches of update number `update` read."""
        return max(update - self.delay, 0)

    @property
    def live(self) -> int:
        """The most versions that exist at a time: the newest, and those that a batch will still read."""
        return self.delay + 1

    def needed(self, updates: int) -> Iterable[int]:
        """Versions that batches may still read when so many updates are made.

        >>> list(Versions.stash(3).needed(5))
        [2, 3, 4, 5]
        """
        return range(self.of_update(updates), updates + 1)
