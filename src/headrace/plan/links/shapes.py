"""Into how many partitions rows on disk are cut, and how many of them are resident."""

from __future__ import annotations

from headrace._sizes import format_size
from headrace.plan.links.asked import LinkAsked
from headrace.plan.links.setting import LinkSetting

WALKED = ("hilbert", "hilbert_symmetric", "row_major")  # orders whose loads have no formula: they are made to count them
MOST_WALKED = 32  # partitions, beyond which that takes seconds
_PARTITIONS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_LEAST_PARTITION = 1 << 20  # bytes that are worth a request to a disk


def shapes(setting: LinkSetting, order: str, asked: LinkAsked) -> list[tuple[int, int]]:
    """The largest buffer that memory holds, of every number of partitions that it makes sense for, or that was asked for."""
    most = min(max(16, setting.table // _LEAST_PARTITION), setting.nodes, MOST_WALKED if order in WALKED else _PARTITIONS[-1])
    numbers = [p for p in _PARTITIONS if p <= most] if asked.partitions is None else [asked.partitions]
    found = []
    for partitions in numbers:
        largest = range(partitions - 1, 1, -1) if asked.buffer is None else [asked.buffer]
        for buffer in largest:
            fits = buffer < partitions and setting.slots(partitions, buffer) <= setting.main_room
            if fits and (order != "comet" or grouped(partitions, buffer)):
                found.append((partitions, buffer))
                break
    return found


def grouped(partitions: int, buffer: int) -> bool:
    """Whether COMET can halve the buffer: l = 2 p / c groups of whole partitions."""
    return buffer % 2 == 0 and 2 * partitions % buffer == 0 and partitions % (2 * partitions // buffer) == 0


def shape(setting: LinkSetting, order: str, asked: LinkAsked) -> tuple[int, int]:
    """Partitions and buffer with the fewest bytes, and of those the fewest partitions."""
    found = shapes(setting, order, asked)
    if not found:
        raise ValueError(_refusal(setting, order, asked))
    return min(found, key=lambda shape: (setting.disk(order, *shape).bytes, shape[0]))


def _refusal(setting: LinkSetting, order: str, asked: LinkAsked) -> str:
    words = [f"{name} {value}" for name, value in (("partitions", asked.partitions), ("buffer", asked.buffer)) if value is not None]
    if order == "comet" and words and shapes(setting, "best", asked):
        return (
            f"order comet does not go with {' and '.join(words)}: it needs an even buffer, and 2 partitions / buffer groups of "
            "whole partitions, as 4 of 16. Use other numbers, or order best"
        )
    partitions = asked.partitions or (MOST_WALKED if order in WALKED else _PARTITIONS[-1])
    least = setting.needed(setting.slots(partitions, asked.buffer or 2))
    with_them = f" with {' and '.join(words)}" if words else ""
    fewer = ", or fewer of them resident" if asked.buffer is not None else ", or more partitions" if words else ""
    return (
        f"memory={format_size(setting.memory)} is too small for {setting.nodes:,} rows of {setting.row_bytes} bytes and "
        f"{setting.edges:,} edges, even on disk{with_them}: give at least {format_size(least)}{fewer}, or a smaller dim, or "
        "row_type bf16"
    )
