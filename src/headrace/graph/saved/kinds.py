"""`Kind`: what a directory of arrays is. One that is taken for another kind is refused, with a word on how to use it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kind:
    """A kind of directory that `headrace.graph.saved.io` writes and reads."""

    noun: str
    meta: str  # the file that lists the arrays; renamed into place when all of them are complete
    format: int
    use: str  # how to use the directory `path`
    folders: str | None = None  # which folders within are part of it, and go with an unfinished one
    replaceable: bool = True  # by a new version, when there is a complete one


DATASET = Kind("dataset", "meta.json", 1, "headrace.open('{path}') opens it")
PARTITION = Kind(
    "partition",
    "partition.json",
    1,
    "one rank for each of its parts trains, torchrun ... -m headrace train node {path}; headrace.cluster.Part.open opens a part",
    folders=r"part-\d+",
    replaceable=False,
)
PART = Kind(
    "part",
    "meta.json",
    1,
    "it is one rank's share of a partition, opened by headrace.cluster.Part.open('{path}'); "
    "ranks train with torchrun ... -m headrace train node PARTITION",
)
_KINDS = {kind.noun: kind for kind in (DATASET, PARTITION, PART)}


def kind_of(path: Path) -> Kind | None:
    """The kind of a directory; None where it is of none, incomplete, or damaged."""
    with suppress(OSError, ValueError, AttributeError, TypeError, RecursionError):
        if (path / PARTITION.meta).is_file():
            return PARTITION
        return _KINDS.get(json.loads((path / DATASET.meta).read_bytes()).get("kind", DATASET.noun))
    return None
