"""How many rows each tier holds, and what was read from it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace._sizes import format_size, parse_size

Budget = int | str | float
_SECTOR = 32  # bytes: the least a GPU reads over the bus


@dataclass(frozen=True)
class Share:
    """Rows of one kind of memory, and how many gathers took from there."""

    name: str
    where: str
    rows: int
    hits: int


@dataclass(frozen=True)
class TierUse:
    """One tier: where it is, what it holds, and what gathers took from it so far."""

    name: str  # "device", "peers" (shards on other GPUs), "host" or "disk"
    where: str
    rows: int
    bytes: int
    hits: int  # rows gathered from here
    moved: int  # bytes of them
    seconds: float | None  # that reading took, where that is known without waiting for a GPU


@dataclass(frozen=True)
class TieredUse:
    """All tiers, from the fastest to the slowest."""

    tiers: tuple[TierUse, ...]

    @property
    def hits(self) -> int:
        """Rows gathered in all."""
        return sum(t.hits for t in self.tiers)

    @property
    def hit_rate(self) -> float:
        """The share of gathered rows that were on the device or its peers; 0 before the first."""
        return sum(t.hits for t in self.tiers if t.name in ("device", "peers")) / self.hits if self.hits else 0.0

    def __str__(self) -> str:
        head = ("tier", "where", "rows", "size", "rows read", "bytes read", "seconds")
        lines = [head]
        for t in self.tiers:
            seconds = "" if t.seconds is None else f"{t.seconds:.3f}"
            lines.append((t.name, t.where, f"{t.rows:,}", format_size(t.bytes), f"{t.hits:,}", format_size(t.moved), seconds))
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        return "\n".join(
            "  ".join(f"{v:<{w}}" if i < 2 else f"{v:>{w}}" for i, (v, w) in enumerate(zip(line, widths, strict=True))).rstrip()
            for line in lines
        )


def share_rows(rows: int, stride: int, device_cache: Budget, host: Budget) -> tuple[int, int]:
    """Rows on the device and rows in host memory, when each takes `stride` bytes.

    >>> share_rows(1000, 100, 0.2, "50KB")
    (200, 500)
    """
    device = _rows_within(device_cache, rows, stride, "device_cache")
    left = rows - device
    return device, left if host == "rest" else min(left, _rows_within(host, rows, stride, "host"))


def row_stride(row_bytes: int, element: int, align: int | None) -> int:
    """Bytes from one row to the next: a multiple of `align`, or, where none is given, so that rows fill whole sectors.

    Rows shorter than a sector take a power of two, so that none lies across two.

    >>> row_stride(400, 4, None), row_stride(12, 4, None), row_stride(400, 4, 64), row_stride(7, 1, 1)
    (416, 16, 448, 7)
    """
    if align is not None and (align < 1 or align & (align - 1)):
        raise ValueError(f"align must be a power of two in bytes, such as 32 or 64, not {align}")
    if align is None:
        align = _SECTOR if row_bytes >= _SECTOR else 1 << max(row_bytes - 1, 0).bit_length()
    align = max(align, element)
    return max(-(-row_bytes // align), 1) * align


def _rows_within(budget: Budget, rows: int, stride: int, name: str) -> int:
    if isinstance(budget, bool) or not isinstance(budget, int | float | str):
        raise ValueError(f"{name} must be bytes (a number, or a text such as '4GiB') or a share of the rows (0.2), not {budget!r}")
    if isinstance(budget, float):
        if not 0 <= budget <= 1:
            raise ValueError(f"{name}={budget} must be a share of the rows, from 0.0 to 1.0; bytes are whole numbers or a text")
        return round(rows * budget)
    try:
        size = parse_size(budget)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if size < 0:
        raise ValueError(f"{name} must not be negative, got {budget}")
    return min(rows, size // stride)
