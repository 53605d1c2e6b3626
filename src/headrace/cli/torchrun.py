"""A command under torchrun: the processes agree before they begin, and rank 0 alone speaks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import typer

from headrace.ranks import Ranks, together

T = TypeVar("T")
_PATIENCE = 2.0  # seconds: torchrun ends all ranks as soon as one has failed, and rank 0 must have spoken by then


def is_first() -> bool:
    """Whether this process is rank 0, or alone."""
    return os.environ.get("RANK", "0") == "0"


def told_by_first(ranks: Ranks, work: Callable[[], T]) -> T:
    """Do `work` on rank 0 and return its result on all ranks; its error is raised on all."""
    results = on_all(ranks, lambda: work() if ranks.rank == 0 else None)
    return results[0]  # type: ignore[return-value]


def on_all(ranks: Ranks, work: Callable[[], T]) -> list[T]:
    """Do `work` on every rank and return all results; an error of one is raised on all, as a ValueError on the others."""
    try:
        return together(ranks, work, consequence="nothing was trained")
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def leave(status: int) -> typer.Exit:
    """End the command with `status`; to be raised. Other ranks than the first leave it the time to say why.

    One of several ranks ends here: on its way through the interpreter's end, gloo may wait for the others, or abort.
    """
    if not is_first():
        time.sleep(_PATIENCE)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return typer.Exit(status)
