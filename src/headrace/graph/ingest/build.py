"""`ingest`: files to a dataset directory, step by step: read and spool, number the ids, sort, write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from headrace._arrays import thread_count
from headrace._memory import peak_memory
from headrace.graph.ingest.edges.by_time import TimedEdges
from headrace.graph.ingest.edges.spooled import Edges, Progress, SpooledEdges
from headrace.graph.ingest.edges.written import write_beside, write_names
from headrace.graph.ingest.files.positional import PositionalRows
from headrace.graph.ingest.files.understood import Understood, understanding
from headrace.graph.ingest.idmap import IdMap
from headrace.graph.ingest.inputs import Inputs, open_inputs
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.node_arrays import write_nodes
from headrace.graph.ingest.nodes import NodeRows
from headrace.graph.ingest.options import IngestOptions, IngestReport
from headrace.graph.ingest.outside.external import RowOptions, RowWriter, edges_at_once
from headrace.graph.ingest.outside.scratch import Array, require_disk, scratch_folder
from headrace.graph.ingest.problems import BadRows, IngestError
from headrace.graph.saved.io import DatasetWriter


def ingest(
    options: IngestOptions,
    progress: Progress | None = None,
    *,
    understood: Callable[[list[Understood]], None] | None = None,
) -> IngestReport:
    """Import edge lists into a dataset directory, within a memory budget.

    What was at `options.output` stays whole until the new dataset is complete; an error or Ctrl-C leaves it as it was,
    and no temporary files. `progress(what, done, total)` is called often, `total` being None where it is not known;
    `understood` once, before the work begins, with what is read from each file.

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
        options.undirected,
        options.deduplicate,
        options.self_loops,
        options.weight_column is not None,
        options.edge_ids or bool(options.edge_feature_columns),
        None if options.time_column is None else np.dtype(np.int64),
    )
    at_once = max(1, edges_at_once(budget, rows) * 20 // (20 + len(options.edge_feature_columns)))
    inputs = open_inputs(options, num_nodes, budget, at_once, threads)
    rows = replace(rows, time=inputs.time and np.dtype(np.float64 if inputs.time == "real" else np.int64))
    rows = replace(rows, edge_ids=rows.edge_ids or inputs.has_relations)
    if understood is not None:
        understood(understanding(inputs))
    bad = BadRows(options.skip_bad)
    with scratch_folder(options.output) as folder:
        require_disk(folder.path, _disk_needed(inputs, rows, positional.bytes, num_nodes or 0))
        shared = budget.shared(len(inputs.text_ids))
        ids = {kind: IdMap(folder, shared, text=text, num_nodes=num_nodes) for kind, text in inputs.text_ids.items()}
        relations = None
        if inputs.has_relations and not inputs.edge_types:
            relations = IdMap(folder, budget.shared(8), text=inputs.text_relations, num_nodes=None)
        spooled = SpooledEdges(inputs, ids, relations, folder, at_once, budget)
        spooled.read(bad, tell)
        if not spooled.count():
            skipped = f": all {bad.count} were bad, the first: {bad.examples[0]}" if bad.count else ""
            named = ", ".join(str(read.table.path) for read in inputs.edges if read.split == 0)
            raise IngestError(f"{named}: there are no edges{skipped}")
        tables: dict[str, NodeRows] = {}
        for read in inputs.nodes:
            assert read.wanted is not None
            tables[read.kind] = NodeRows(read.table, read.wanted, folder, bad)
            tables[read.kind].read(ids[read.kind], lambda done, size=read.table.size: tell("reading nodes", done, size))  # type: ignore[misc]
        pa.default_memory_pool().release_unused()
        for numbered in (*ids.values(), relations):
            if numbered is not None:
                numbered.finish(lambda done, total: tell("numbering nodes", done, total))
        edges: Edges = spooled
        if inputs.time is not None and not spooled.in_order:
            edges = timed = TimedEdges(spooled, folder, budget, threads)
            timed.sort(lambda done, total: tell("sorting by time", done, total))
        total = sum(of.num_nodes for of in ids.values())
        with writer:
            graph = RowWriter(lambda: _entries(edges, rows), total, edges.count(), rows, folder, threads)
            num_edges = graph.write(writer, budget, tell)
            held_out = options.val_triples is not None or options.test_triples is not None
            write_beside(writer, edges, inputs, num_nodes=total, held_out=held_out)
            if tables or options.typed:
                count = partial(tell, "writing nodes")
                write_nodes(writer, ids, tables, folder, budget, threads, lambda done: count(done, total), inputs.edge_types)
            positional.write(writer, budget)
            _write_id_map(writer, ids)
            num_relations = _write_relations(writer, inputs, relations)
            files = [file.path.name for file in options.edge_files]
            writer.info |= {"name": options.output.name, "imported_from": files}
            if inputs.time == "date":
                writer.info["time_unit"] = "seconds since 1970"
            tell("finishing", 0, None)
    return IngestReport(
        path=options.output,
        num_nodes=total,
        num_edges=num_edges,
        rows=spooled.total,
        bad_rows=bad.count,
        bad_examples=tuple(bad.examples),
        nodes_without_row=sum(table.without_row for table in tables.values()),
        bytes=sum(file.stat().st_size for file in options.output.iterdir()),
        seconds=time.monotonic() - began,
        peak_memory=peak_memory(),
        num_relations=num_relations,
        put_in_order=edges is not spooled,
    )


def _entries(edges: Edges, rows: RowOptions) -> Iterator[tuple[Array, ...]]:
    """The edges to train on, as the graph is built of them."""
    for piece in edges.pieces():
        yield (piece["src"], piece["dst"], *(piece[name] for name in rows.beside))


def _disk_needed(inputs: Inputs, rows: RowOptions, positional: int, num_nodes: int) -> int:
    """About how many bytes the temporary files and the result take together at their fullest.

    num_nodes: as the user said it, whatever the edges name; 0 where that is found out.
    """
    edges = inputs.rows()
    entry = 4 + 4 * rows.weight + 4 * rows.edge_ids + 8 * (rows.time is not None)
    beside = 8 * inputs.num_features + 16 * inputs.has_relations + 48 * (rows.time is not None)
    each = 8 + 4 * rows.weight + beside + (4 + 3 * entry) * (2 if rows.undirected else 1)
    ids = inputs.size if any(inputs.text_ids.values()) else 8 * min(edges, 1 << 20)
    nodes = sum(3 * read.table.size for read in inputs.nodes)
    each_node = 8 + 2 * entry * (rows.self_loops == "add") + 4 * sum(read.width for read in inputs.nodes)
    return edges * each + ids + nodes + positional + num_nodes * each_node


def _write_id_map(writer: DatasetWriter, ids: Mapping[str, IdMap]) -> None:
    """The raw id of every node: a Parquet file to join with and, for integers, the array `extra["id"]`.

    With types, the id of a node is written after its type: `author:17`.
    """
    if not all(of.has_map for of in ids.values()):
        return
    if list(ids) != [""]:
        keys_of = ((kind, keys.cast(pa.string())) for kind, of in ids.items() for keys in of.distinct())
        pieces = (pc.binary_join_element_wise(kind, keys, ":") for kind, keys in keys_of)
        write_names(writer, "ids", pieces, pa.string())
        return
    (of,) = ids.values()
    write_names(writer, "ids", of.distinct(), pa.string() if of.is_text else pa.int64())
    if not of.is_text:
        array = writer.array("extra_id", torch.int64, (of.num_nodes,))
        for keys in of.distinct():
            array.append(keys.to_numpy())


def _write_relations(writer: DatasetWriter, inputs: Inputs, relations: IdMap | None) -> int:
    """What relations are called, and how many there are."""
    if relations is not None:
        count = write_names(writer, "names_relations", relations.distinct(), pa.string() if relations.is_text else pa.int64())
    elif inputs.edge_types:
        count = write_names(writer, "names_relations", [pa.array(["-".join(kind) for kind in inputs.edge_types])], pa.string())
    else:
        return 0
    writer.info["num_relations"] = count
    return count
