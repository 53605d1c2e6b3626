"""The memory budget of an import, and how large the pieces may be that it works on."""

from __future__ import annotations

from dataclasses import dataclass

from headrace import _sizes
from headrace._memory import resident_memory
from headrace._sizes import format_size
from headrace.graph.ingest.problems import IngestError

_LEAST_WORKING = 96 << 20
_RESERVE = 32 << 20  # what the allocators, the parser and Python itself grow by, whatever the pieces are


def parse_size(text: str | int) -> int:
    """Bytes from a number or from a text such as `600MiB`, `1.5GiB`, `2GB`."""
    try:
        return _sizes.parse_size(text)
    except ValueError as error:
        raise IngestError(str(error)) from None


@dataclass(frozen=True)
class Budget:
    """How the memory between what is held now and the limit is shared out.

    Two things may be held for long, the id table and what is being sorted, so each has half; within its half, a step
    sizes its pieces by the bytes it needs per item, all its temporaries counted.
    """

    working: int

    @classmethod
    def within(cls, limit: int) -> Budget:
        held = resident_memory()
        if limit - held < _LEAST_WORKING:
            least = -(-(held + _LEAST_WORKING) // (16 << 20)) * 16
            raise IngestError(
                f"memory={format_size(limit)} is too small: Python and its libraries hold {format_size(held)} already; "
                f"the least that works is {least}MiB"
            )
        return cls(int((limit - held - _RESERVE) * 0.75))

    def shared(self, users: int) -> Budget:
        """The part of one of several that hold memory at the same time."""
        return Budget(self.working // max(1, users))

    @property
    def table(self) -> int:
        """Bytes for the table that turns raw ids into node ids."""
        return self.working // 2

    @property
    def block(self) -> int:
        """Bytes of text parsed at a time by each thread."""
        return min(8 << 20, max(256 << 10, self.working // 64))

    def items(self, bytes_each: int) -> int:
        """How many items a step may hold at once, when each needs so many bytes."""
        return max(1024, self.working // 2 // bytes_each)
