"""Checkpoints: written aside, flushed and renamed, so that there is always a whole one."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

import torch

from headrace._files import write_whole

FORMAT = 2
_REMEDY = "restore it from a copy, or begin another run"


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the message says why and what is safe."""


def save_checkpoint(path: Path, state: dict[str, Any], log: BinaryIO | None = None) -> None:
    """Replace the checkpoint at `path`, which stays whole until the new one, and the `log` it counts on, is on the disk."""
    data = BytesIO()
    torch.save({"format": FORMAT, **state}, data)
    try:
        if log is not None:
            os.fsync(log.fileno())
        write_whole(path, data.getbuffer())
    except OSError as error:
        kept = f"; the one before is whole ({path})" if path.exists() else ""
        raise CheckpointError(f"the checkpoint could not be written: {error.strerror or error}{kept}") from error


def load_checkpoint(path: Path, *, mapped: bool = False) -> dict[str, Any]:
    """The state that was saved. Only tensors and plain values are read: a file from elsewhere cannot run code.

    mapped: leave tensors in the file, to be read where they are looked at.
    """
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        with ZipFile(path) as archive:  # torch does not look at the checksums that it writes
            if (part := archive.testzip()) is not None:
                raise ValueError(f"the checksum of {part} is wrong")
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu", mmap=mapped)
        version = state.pop("format")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # torch has no one error for a file it cannot read
        reason = " ".join(str(error).split("\n", 1)[0].split())
        raise CheckpointError(f"{path} is damaged or no checkpoint ({reason}): {_REMEDY}") from None
    if version != FORMAT:
        raise CheckpointError(f"{path} has format {version}; this version of Headrace reads format {FORMAT}")
    return state


def packed(state: dict[str, Any]) -> bytes:
    """The state as bytes, for a checkpoint that is not a file of its own."""
    data = BytesIO()
    torch.save(state, data)
    return data.getvalue()


def unpacked(data: bytes, path: Path) -> dict[str, Any]:
    """The state that was `packed`, read from `path`; only tensors and plain values."""
    try:
        state: dict[str, Any] = torch.load(BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:  # torch has no one error for what it cannot read
        raise CheckpointError(f"the checkpoint in {path} is damaged ({type(error).__name__}): {_REMEDY}") from None
    return state
