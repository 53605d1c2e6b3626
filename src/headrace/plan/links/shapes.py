"""Into how many partitions rows on disk are cut, and how many of them are resident."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from headrace._sizes import format_size
from headrace.plan.links.asked import LinkAsked
from headrace.plan.links.setting import LinkSetting
from headrace.train.links.memory import SPARE, LinkMemory

WALKED = ("hilbert", "hilbert_symmetric", "row_major")  # orders whose loads have no formula: they are made to count them
MOST_WALKED = 32  # partitions, beyond which that takes seconds
_PARTITIONS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_LEAST_PARTITION = 1 << 20  # bytes that are worth a request to a disk
# How well a run fits: slots to read ahead into, and whether batches have a share of memory. Training takes each of them.
_COMFORTS = ((SPARE, True), (SPARE, False), (1, False), (0, False))


def shapes(setting: LinkSetting, run: LinkMemory, order: str, asked: LinkAsked) -> list[LinkMemory]:
    """The run with the largest buffer that memory holds, for every number of partitions that makes sense, or that was asked for.

    They are those that fit most comfortably: without slots to read ahead only if no other number of partitions has room for them.
    """
    for spare, shares in _COMFORTS:
        fitting = list(_fitting(setting, run, order, asked, spare, shares))
        if fitting:
            return fitting
    return []


def _fitting(setting: LinkSetting, run: LinkMemory, order: str, asked: LinkAsked, spare: int, shares: bool) -> Iterator[LinkMemory]:
    most = min(max(16, setting.table // _LEAST_PARTITION), setting.nodes, MOST_WALKED if order in WALKED else _PARTITIONS[-1])
    on_device = run.gpu and asked.buffer_on == "device"
    for partitions in [p for p in _PARTITIONS if p <= most] if asked.partitions is None else [asked.partitions]:
        for buffer in range(partitions - 1, 1, -1) if asked.buffer is None else [asked.buffer]:
            if buffer >= partitions or (order == "comet" and not grouped(partitions, buffer)):
                continue
            tried = replace(run, partitions=partitions, buffer=buffer)
            if setting.fits(tried, spare=spare, shares=shares) and (not on_device or setting.fits_device(tried)):
                yield tried
                break


def grouped(partitions: int, buffer: int) -> bool:
    """Whether COMET can halve the buffer: l = 2 p / c groups of whole partitions."""
    return buffer % 2 == 0 and 2 * partitions % buffer == 0 and partitions % (2 * partitions // buffer) == 0


def shape(setting: LinkSetting, run: LinkMemory, order: str, asked: LinkAsked) -> LinkMemory:
    """The run with partitions and buffer of the fewest bytes, and of those the fewest partitions."""
    fitting = shapes(setting, run, order, asked)
    if not fitting:
        raise ValueError(_refusal(setting, run, order, asked))
    return min(fitting, key=lambda shaped: (setting.disk(shaped, order).bytes, shaped.partitions))


def _refusal(setting: LinkSetting, run: LinkMemory, order: str, asked: LinkAsked) -> str:
    words = [f"{name} {value}" for name, value in (("partitions", asked.partitions), ("buffer", asked.buffer)) if value is not None]
    if order == "comet" and words and shapes(setting, run, "best", asked):
        return (
            f"order comet does not go with {' and '.join(words)}: it needs an even buffer, and 2 partitions / buffer groups of "
            "whole partitions, as 4 of 16. Use other numbers, or order best"
        )
    partitions = asked.partitions or (MOST_WALKED if order in WALKED else _PARTITIONS[-1])
    least = replace(run, partitions=partitions, buffer=asked.buffer or 2)
    if run.gpu and asked.buffer_on == "device" and not setting.fits_device(least):
        return (
            f"buffer_on device needs {format_size(setting.device_needs(least))}, and the GPU has "
            f"{format_size(setting.device_memory or 0)}: use buffer_on host or a smaller buffer"
        )
    with_them = f" with {' and '.join(words)}" if words else ""
    fewer = ", or fewer of them resident" if asked.buffer is not None else ", or more partitions" if words else ""
    return (
        f"memory={format_size(setting.memory)} is too small for {setting.nodes:,} rows of {run.row_bytes} bytes and "
        f"{setting.edges:,} edges, even on disk{with_them}: give at least {format_size(_enough(least))} ({least.told()}){fewer}, "
        "or a smaller dim, or row_type bf16"
    )


def _enough(run: LinkMemory) -> int:
    """Main memory that a run fits into: a part of what it needs, to rank edges, grows with it."""
    memory = run.total(0)
    while (needed := replace(run, limit=memory).total(0)) > memory:
        memory = needed
    return memory
