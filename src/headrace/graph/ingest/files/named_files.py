"""Files of an import with the types of their nodes or edges: `author=authors.csv`, `author:writes:paper=writes.csv`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.graph.ingest.problems import IngestError

_EDGES = re.compile(r"(?P<source>[^:=/]+):(?P<name>[^:=/]+):(?P<target>[^:=/]+)=(?P<path>.+)")
_NODES = re.compile(r"(?P<kind>[^:=/]+)=(?P<path>.+)")


@dataclass(frozen=True)
class EdgeFile:
    """An edge list: its type (source type, name, target type) where edges have types, and its split: 0 train, 1 val, 2 test."""

    path: Path
    kind: tuple[str, str, str] | None = None
    split: int = 0


@dataclass(frozen=True)
class NodeFile:
    """A node table, and the type of its nodes where nodes have types."""

    path: Path
    kind: str = ""


def edge_files(paths: Sequence[Path], *, mixed: bool = False) -> list[EdgeFile]:
    """The files that arguments name; an error where some have types and some have none, unless `mixed`."""
    files = []
    for path in paths:
        match = _EDGES.fullmatch(str(path))
        kind = None if match is None else (match["source"], match["name"], match["target"])
        files.append(EdgeFile(path if match is None else Path(match["path"]), kind))
    without = [file.path for file in files if file.kind is None]
    if without and len(without) < len(files) and not mixed:
        raise IngestError(f"edges: {without[0]} has no type, and others have: write it as author:writes:paper={without[0]}")
    return files


def node_files(paths: Sequence[Path], *, typed: bool) -> list[NodeFile]:
    """The node tables that arguments name; where edges have types, each must have one."""
    if not typed:
        return [NodeFile(path) for path in paths]
    files: list[NodeFile] = []
    for path in paths:
        match = _NODES.fullmatch(str(path))
        if match is None:
            raise IngestError(f"nodes: {path} has no type, and edges have: write it as author={path}")
        if match["kind"] in [file.kind for file in files]:
            raise IngestError(f"nodes: there are two tables of {match['kind']!r}: give one for each type")
        files.append(NodeFile(Path(match["path"]), match["kind"]))
    return files
