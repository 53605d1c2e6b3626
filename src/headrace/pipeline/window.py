"""`Window`: which epoch an interval may start, a pure function of the slowest interval's epoch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """At most `lead` epochs between an interval and the slowest one (Dorylus, Thorpe et al., OSDI'21, section 5.2).

    The slowest interval's epoch is the one that it works on, or will work on next. Epoch `first` is synchronous: nobody starts the
    next one before all have ended it, so every row has been computed once when rows are first read without waiting. Such a row is
    at most `lead + 1` epochs old: an interval at `slowest + lead` may read what the slowest made in epoch `slowest - 1`.

    >>> window = Window(lead=2)
    >>> [window.allows(epoch, slowest=4) for epoch in (5, 6, 7)]
    [True, True, False]
    >>> [window.allows(epoch, slowest=0) for epoch in (0, 1)]
    [True, False]
    """

    lead: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        if self.lead < 0:
            raise ValueError(f"lead must not be negative, got {self.lead}")

    def needs(self, epoch: int) -> int:
        """The epoch that the slowest interval must have reached before any may start `epoch`."""
        return self.first if epoch <= self.first else max(epoch - self.lead, self.first + 1)

    def allows(self, epoch: int, slowest: int) -> bool:
        """Whether an interval may start `epoch`."""
        return slowest >= self.needs(epoch)
