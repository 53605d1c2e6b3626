"""Choices with what they were made from, what they are predicted to cost, and why; printable as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from headrace._sizes import format_size


@dataclass(frozen=True)
class Candidate:
    """One way that was weighed. Bytes and seconds are of a training step, unless its choice says what else."""

    name: str
    bytes: float
    seconds: float


@dataclass(frozen=True)
class Choice:
    """What was decided, among which candidates, and the reason in words."""

    name: str
    chosen: str
    alternatives: tuple[Candidate, ...]
    reason: str

    @property
    def candidate(self) -> Candidate:
        """What was chosen, with its prediction."""
        return next(c for c in self.alternatives if c.name == self.chosen)


class Decided:
    """Choices by their names; `str` is a summary and a table of them."""

    choices: tuple[Choice, ...]
    columns: ClassVar[tuple[str, ...]] = ("bytes", "seconds")

    def cells(self, candidate: Candidate) -> tuple[str, ...]:
        """The cells of a candidate, one for each of `columns`."""
        return format_size(candidate.bytes), seconds(candidate.seconds)

    @property
    def summary(self) -> str:
        """What was planned, in a line or two."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Choice]:
        return iter(self.choices)

    def __getitem__(self, name: str) -> Choice:
        for choice in self.choices:
            if choice.name == name:
                return choice
        raise KeyError(f"this plan has no choice {name!r}: it has {', '.join(choice.name for choice in self.choices)}")

    def __str__(self) -> str:
        lines = [self.summary]
        for choice in self.choices:
            lines.append("")
            lines.append(f"{choice.name}: {choice.chosen}")
            for candidate in choice.alternatives:
                mark = "*" if candidate.name == choice.chosen else " "
                lines.append(f"  {mark} {candidate.name:<28} " + " ".join(f"{cell:>10}" for cell in self.cells(candidate)))
            lines.append(f"  {choice.reason}")
        return "\n".join(lines)


def seconds(value: float) -> str:
    """Seconds for a reader: `1.5 ms`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} us"
