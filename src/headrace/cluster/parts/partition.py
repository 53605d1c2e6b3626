"""`partition`: a dataset directory cut into parts, one for each rank."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headrace._files import require_disk
from headrace._memory import require_memory
from headrace.cluster.parts.estimate import estimate
from headrace.cluster.parts.owners import By, Progress, check_by, owners_by
from headrace.cluster.parts.share import Wrote, write_columns, write_share
from headrace.cluster.parts.summary import PartitionSummary, Share
from headrace.cluster.parts.whole import describe
from headrace.graph import Dataset
from headrace.graph.convert import as_dataset
from headrace.graph.saved.io import DatasetWriter
from headrace.graph.saved.kinds import PART, PARTITION
from headrace.store import HashOwners, TableOwners, column_bounds

_AT_ONCE = 16  # parts whose columns are written together, so that features are read once for all of them


def partition(
    data: Any,
    out: str | os.PathLike[str],
    *,
    parts: int,
    by: By = "hash",
    columns: bool = False,
    progress: Progress | None = None,
    threads: int | None = None,
) -> PartitionSummary:
    """Cut a dataset into `parts` parts, written to directory `out`: one for each rank that is to train.

    A part holds the rows of the graph of the nodes that it owns, their labels and their splits, and their features; or, with
    `columns`, a slice of the columns of every node's features, as push-pull training wants it (P3, OSDI'21). Neighbors keep their
    ids. `by` says who owns a node: "hash" spreads nodes evenly without looking at edges; "ldg" keeps neighbors together, in memory
    for nodes alone; "rabbit" and "metis" (extra `reorder`) mostly cut fewer edges, and hold all of them in memory.

    Rows are copied in pieces, so that a dataset that is opened from a directory may be larger than memory. `out` is complete or not
    there: an error or Ctrl-C removes it, and what a killed process left is removed by the next one. `extra` arrays, the map of
    ids and names stay with the dataset. `progress(what, done, total)` is called often.

    >>> import tempfile
    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=1000, edges=20_000, classes=4, features=16)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     summary = hr.cluster.partition(data, f"{folder}/parts", parts=4)
    ...     part = hr.cluster.Part.open(f"{folder}/parts", 2)
    >>> part.x.equal(data.x[part.ids])
    True
    """
    began, path, tell = time.monotonic(), Path(out), progress or (lambda what, done, total: None)
    data = as_dataset(data)
    _check(data, parts, by, columns)
    data = replace(data, graph=data.graph.to("cpu"))
    needed, what = estimate(data, parts=parts, by=by), f"a partition by {by!r}"
    require_memory(
        needed.memory, what, "choose by 'ldg', which holds no edges" if by in ("rabbit", "metis") else "use a larger machine"
    )
    require_disk(path, needed.disk, what)
    writer = DatasetWriter(path, kind=PARTITION)
    data.graph.validate(threads=threads)
    owners = owners_by(by, data.graph, parts, progress=tell, threads=threads)
    whole = describe(data, owners, by=by, columns=columns)
    json.dumps(whole)  # what cannot be written is found before the work
    with writer:
        done = 0

        def wrote(size: int) -> None:
            nonlocal done
            done += size
            tell("writing parts", min(done, needed.disk), needed.disk)

        shares = tuple(_write_parts(path, data, owners, whole, wrote, threads))
        summary = PartitionSummary(path, by, columns, shares, tuple(whole["left_out"]), 0.0)
        if isinstance(owners, TableOwners):
            writer.write("owner", owners.owner)
        writer.info = whole | summary.figures()
        tell("finishing", 0, None)
    return replace(summary, seconds=time.monotonic() - began)


def _check(data: Dataset, parts: int, by: By, columns: bool) -> None:
    check_by(by)
    if not 1 <= parts <= data.num_nodes:
        raise ValueError(f"parts must be from 1 to the number of nodes, {data.num_nodes}, not {parts}")
    if columns:
        if data.x is None:
            raise ValueError("there are no features whose columns could be cut: partition without columns")
        if data.x.dim() > 2:
            raise ValueError(f"features of shape {list(data.x.shape)} have no columns: partition without columns")
        column_bounds(data.num_features, parts)


def _write_parts(
    path: Path, data: Dataset, owners: HashOwners | TableOwners, whole: dict[str, Any], wrote: Wrote, threads: int | None
) -> Iterator[Share]:
    """Write all parts, some of them at a time, each complete when its writer ends."""
    bounds = column_bounds(data.num_features, owners.ranks) if whole["columns"] else []
    at_once = _AT_ONCE if bounds else 1
    for first in range(0, owners.ranks, at_once):
        numbers = range(first, min(first + at_once, owners.ranks))
        shares = []
        with ExitStack() as stack:
            writers = [stack.enter_context(DatasetWriter(path / f"part-{number}", kind=PART)) for number in numbers]
            for writer, number in zip(writers, numbers, strict=True):
                share = write_share(writer, data, owners, number, rows=not bounds, wrote=wrote, threads=threads)
                writer.info = {"number": number, "whole": whole, "share": asdict(share)}
                shares.append(share)
            if bounds and data.x is not None:
                write_columns(writers, data.x, bounds[first : first + at_once], wrote)
        for writer, share in zip(writers, shares, strict=True):
            yield replace(share, bytes=sum(file.stat().st_size for file in writer.path.iterdir()))
