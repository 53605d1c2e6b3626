"""`ingest`: files to a dataset directory, step by step: read and spool, number the ids, sort, write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from headrace._arrays import thread_count
from headrace._memory import peak_memory
from headrace.graph.ingest.columns import clean
from headrace.graph.ingest.external import RowOptions, RowWriter, edges_at_once
from headrace.graph.ingest.idmap import IdMap
from headrace.graph.ingest.inputs import AnyTable, Inputs, open_inputs
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.nodes import NodeRows
from headrace.graph.ingest.options import IngestOptions, IngestReport
from headrace.graph.ingest.positional import PositionalRows
from headrace.graph.ingest.problems import BadRows, IngestError
from headrace.graph.ingest.scratch import Array, Scratch, require_disk, scratch_folder
from headrace.graph.io import DatasetWriter

Progress = Callable[[str, int, int | None], None]

_TEXT_KEY_BYTES, _TEXT_COPIES = 80, 5  # what numbering texts needs: per key, and times their own bytes


def ingest(options: IngestOptions, progress: Progress | None = None) -> IngestReport:
    """Import edge lists into a dataset directory, within a memory budget.

    What was at `options.output` stays whole until the new dataset is complete; an error or Ctrl-C leaves it as it was,
    and no temporary files. `progress(what, done, total)` is called often, `total` being None where it is not known.

    >>> from headrace.graph.ingest import IngestOptions, ingest
    >>> ingest(IngestOptions(edges=("edges.csv",), output="data")).num_edges              # doctest: +SKIP
    1024
    """
    began = time.monotonic()
    tell = progress or (lambda what, done, total: None)
    writer = DatasetWriter(options.output)
    positional = PositionalRows(options)
    num_nodes = positional.num_nodes
    threads = thread_count(options.threads)
    assert isinstance(options.memory, int)
    budget = Budget.within(options.memory)
    rows = RowOptions(
        options.undirected, options.deduplicate, options.self_loops, options.weight_column is not None, options.edge_ids
    )
    inputs = open_inputs(options, num_nodes, budget, edges_at_once(budget, rows), threads)
    bad = BadRows(options.skip_bad)
    with scratch_folder(options.output) as folder:
        require_disk(folder.path, _disk_needed(inputs, rows, positional.bytes, num_nodes or 0))
        ids = IdMap(folder, budget, text=inputs.text_ids, num_nodes=num_nodes)
        edges = _SpooledEdges(ids, folder, rows.weight, edges_at_once(budget, rows), budget)
        edges.read(inputs, bad, tell)
        if not edges.count:
            skipped = f": all {bad.count} were bad, the first: {bad.examples[0]}" if bad.count else ""
            raise IngestError(f"{', '.join(map(str, options.edges))}: there are no edges{skipped}")
        nodes = None
        if inputs.nodes is not None:
            table, columns = inputs.nodes
            nodes = NodeRows(table, columns, folder, bad)
            nodes.read(ids, edges.groups, lambda done: tell("reading nodes", done, table.size))
        pa.default_memory_pool().release_unused()
        ids.finish(lambda done, total: tell("numbering nodes", done, total))
        with writer:
            graph = RowWriter(edges.pieces, ids.num_nodes, edges.count, rows, folder, threads)
            num_edges = graph.write(writer, budget, tell)
            if nodes is not None:
                nodes.write(writer, ids, budget, threads, lambda done: tell("writing nodes", done, ids.num_nodes))
                writer.info |= nodes.info
            positional.write(writer, budget)
            _write_id_map(writer, ids)
            writer.info |= {"name": options.output.name, "imported_from": [path.name for path in options.edges]}
            tell("finishing", 0, None)
    return IngestReport(
        path=options.output,
        num_nodes=ids.num_nodes,
        num_edges=num_edges,
        rows=edges.count,
        bad_rows=bad.count,
        bad_examples=tuple(bad.examples),
        nodes_without_row=0 if nodes is None else nodes.without_row,
        bytes=sum(file.stat().st_size for file in options.output.iterdir()),
        seconds=time.monotonic() - began,
        peak_memory=peak_memory(),
    )


class _SpooledEdges:
    """Edges on disk in groups: raw ids with the id map, sources before targets, and weights beside them."""

    def __init__(self, ids: IdMap, folder: Scratch, weight: bool, at_once: int, budget: Budget) -> None:
        self._ids, self._at_once, self._budget = ids, at_once, budget
        self._weights = folder.spool("weights") if weight else None
        self.groups = self.count = 0

    def read(self, inputs: Inputs, bad: BadRows, tell: Progress) -> None:
        held: list[list[Any]] = []
        size = waiting = before = 0
        for table, wanted in inputs.edges:
            for batch in _interruptible(table, wanted):
                columns, _, wrong = clean(batch, wanted)
                bad.add(table, wrong)
                if len(columns[0]):
                    room = self._at_once
                    fresh, weighs = len(columns[0]), sum(column.nbytes for column in columns[:2])
                    if held and (waiting + fresh > room or self._too_much(waiting + fresh, size + weighs)):
                        self._flush(held)
                        held, size, waiting = [], 0, 0
                    held.append(columns)
                    size, waiting = size + weighs, waiting + fresh
                tell("reading edges", before + table.done, inputs.size)
            before += table.size
        if held:
            self._flush(held)

    def _too_much(self, edges: int, size: int) -> bool:
        return self._ids.is_text and 2 * edges * _TEXT_KEY_BYTES + size * _TEXT_COPIES > self._budget.working // 2

    def _flush(self, held: list[list[Any]]) -> None:
        keys = [columns[0] for columns in held] + [columns[1] for columns in held]
        self._ids.add(pa.concat_arrays(keys) if self._ids.is_text else np.concatenate(keys))
        if self._weights is not None:
            self._weights.append(np.concatenate([columns[2] for columns in held]))
        self.groups += 1
        self.count += sum(len(columns[0]) for columns in held)

    def pieces(self) -> Iterator[tuple[Array, Array, Array | None]]:
        for number in range(self.groups):
            ids = self._ids.group(number)
            half = len(ids) // 2
            yield ids[:half], ids[half:], None if self._weights is None else self._weights.read(number)


def _interruptible(table: AnyTable, wanted: list[Any]) -> Iterator[Any]:
    """The batches of a table, its reader closed at once when the import stops midway."""
    batches = table.batches(wanted)
    try:
        yield from batches
    except pa.ArrowException as error:
        raise IngestError(f"{table.path} cannot be read: {error}") from None
    finally:
        if hasattr(batches, "close"):
            batches.close()


def _disk_needed(inputs: Inputs, rows: RowOptions, positional: int, num_nodes: int) -> int:
    """About how many bytes the temporary files and the result take together at their fullest.

    num_nodes: as the user said it, whatever the edges name; 0 where that is found out.
    """
    edges = inputs.rows()
    entry = 4 + 4 * rows.weight + 4 * rows.edge_ids
    each = 8 + 4 * rows.weight + (4 + 3 * entry) * (2 if rows.undirected else 1)
    ids = inputs.size if inputs.text_ids else 8 * min(edges, 1 << 20)
    nodes = 3 * inputs.nodes[0].size if inputs.nodes else 0
    each_node = 8 + 2 * entry * (rows.self_loops == "add") + (inputs.nodes[1].width * 4 if inputs.nodes else 0)
    return edges * each + ids + nodes + positional + num_nodes * each_node


def _write_id_map(writer: DatasetWriter, ids: IdMap) -> None:
    """The raw id of every node: a Parquet file to join with and, for integers, the array `extra["id"]`."""
    if not ids.has_map:
        return
    array = None if ids.is_text else writer.array("extra_id", torch.int64, (ids.num_nodes,))
    schema = pa.schema([("node", pa.int64()), ("id", pa.string() if ids.is_text else pa.int64())])
    first = 0
    with pq.ParquetWriter(writer.side_file("ids"), schema) as file:
        for keys in ids.distinct():
            if not len(keys):
                continue
            file.write_table(pa.table([pa.array(np.arange(first, first + len(keys))), keys], schema=schema))
            if array is not None:
                array.append(keys.to_numpy())
            first += len(keys)
