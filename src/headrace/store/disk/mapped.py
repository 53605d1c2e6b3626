"""Which file a tensor is mapped from: rows that are on disk already need not be written there again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor


@dataclass(frozen=True)
class MappedPlace:
    """Where the bytes of a tensor are: a file, and the offset of the first one."""

    path: Path
    offset: int


def mapped_place(rows: Tensor) -> MappedPlace | None:
    """The file that contiguous `rows` are mapped from, whoever mapped it (numpy, torch, safetensors); None if they are in memory.

    None too where a private map was written to: what the file holds is no longer what the tensor does. Told from `/proc`, so that
    tensors of systems without it count as in memory.
    """
    if sys.platform != "linux" or rows.device.type != "cpu" or not rows.is_contiguous() or rows.nbytes == 0:
        return None
    first, last = rows.data_ptr(), rows.data_ptr() + rows.nbytes
    for begin, end, offset, inode, name, changed in _maps():
        if not (begin <= first and last <= end) or not name.startswith("/"):
            continue
        path = Path(name)
        try:
            same = path.stat().st_ino == inode
        except OSError:  # deleted since
            same = False
        return MappedPlace(path, offset + first - begin) if same and not changed else None
    return None


def _maps() -> Iterator[tuple[int, int, int, int, str, bool]]:
    """Begin, end, offset, inode and file of every map of the process, and whether pages of it are copies of its own."""
    head: tuple[int, int, int, int, str] | None = None
    with open("/proc/self/smaps", encoding=sys.getfilesystemencoding(), errors="surrogateescape") as lines:
        for line in lines:
            words = line.split(maxsplit=5)
            if "-" in words[0] and not words[0].endswith(":"):
                begin, end = (int(word, 16) for word in words[0].split("-"))
                head = (begin, end, int(words[2], 16), int(words[4]), words[5].rstrip("\n") if len(words) > 5 else "")
            elif words[0] == "Anonymous:" and head is not None:
                yield (*head, int(words[1]) > 0)
