"""What is wrong with the input: the error a user reads, and the rows that were skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

_EXAMPLES = 10


class IngestError(ValueError):
    """The input cannot be imported as asked: the message names the argument or the file and line, and the remedy."""


class Located(Protocol):
    """A file that can say where in it a row stands."""

    def where(self, row: int) -> str: ...


@dataclass(frozen=True)
class BadRow:
    """One row that cannot be used: its number in the file and what is wrong with it."""

    row: int
    problem: str


@dataclass
class BadRows:
    """Stops at the first bad row, or counts them and keeps the first few for the report."""

    skip: bool
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, table: Located, rows: Sequence[BadRow]) -> None:
        for bad in sorted(rows, key=lambda bad: bad.row)[: max(1, _EXAMPLES - len(self.examples))]:
            message = f"{table.where(bad.row)}: {bad.problem}"
            if not self.skip:
                joined = "; or" if "): " in bad.problem else ": mend the row, or"
                raise IngestError(f"{message}{joined} leave such rows out by skip_bad")
            if len(self.examples) < _EXAMPLES:
                self.examples.append(message)
        self.count += len(rows)


def quoted(text: object, most: int = 80) -> str:
    """The text as it stands in the file, shortened to fit a line."""
    shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return repr(shown if len(shown) <= most else shown[: most - 3] + "...")
