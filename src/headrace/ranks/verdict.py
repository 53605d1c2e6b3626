"""Which rank is to blame: a function of what was read of the ranks, without threads or network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.ranks.beats import Beat
from headrace.ranks.process import State


@dataclass(frozen=True)
class Seen:
    """What a rank knows of another one, or of itself."""

    name: str  # its number, process and host
    beat: Beat
    silence: float = 0.0  # seconds from when its last beat was read to when the store last answered
    process: State = "unknown"
    rounds_after_end: int = 0  # how often the store was read after its process was seen to have ended


def verdict(
    ranks: Sequence[Seen], *, me: int, patience: float, store_silence: float, store_error: str = "", host: int | None = None
) -> str | None:
    """Say which rank makes this one end, and why; None while all is well. `host`: the rank that hosts the store."""
    others = [other for rank, other in enumerate(ranks) if rank != me and other.beat.state != "left"]
    for other in others:
        if other.beat.state == "failed":
            return f"{other.name} failed:\n{other.beat.reason}"
    for other in others:
        if other.beat.state == "ending":
            return other.beat.reason
    lost = bool(store_error) or store_silence > patience
    if lost and host is not None and ranks[host].beat.state == "left":
        return None  # nothing can be known of the ranks that are still at work
    for other in others:
        # Its last words, or those of a rank that killed it since it was stopped, may have come after the latest reading: the
        # second one from now was begun later.
        if other.process == "ended" and (lost or other.rounds_after_end >= 2):
            return f"{other.name} has ended without a word: it was killed, or it crashed"
    for other in others:
        if other.process == "stopped" and (lost or other.silence > patience):
            return f"{other.name} was stopped (SIGSTOP)"
    if lost:
        where = "The job's store" if host is None else f"The job's store, which {ranks[host].name} hosts,"
        why = store_error or f"silent for {patience:g} s"
        return f"{where} does not answer ({why}): its process has ended, or the link to it is cut"
    for other in others:
        if other.silence > patience and other.process != "ended":
            hint = "its process lives, so it hangs, or" if other.process == "running" else "it hangs, its machine is down, or"
            return f"{other.name} has given no sign of life for {patience:g} s: {hint} the link to it is cut"
    return None
