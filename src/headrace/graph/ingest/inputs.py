"""The files of an import, opened and understood before anything long begins: which columns, and what ids are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.graph.ingest.columns import Kind, Wanted
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.nodes import NodeColumns
from headrace.graph.ingest.options import Column, IngestOptions
from headrace.graph.ingest.problems import IngestError
from headrace.graph.ingest.tables import (
    NpyTable,
    ParquetTable,
    column_index,
    kind_of,
    looks_integer,
    open_text_table,
    require_file,
)
from headrace.graph.ingest.text import TextTable

AnyTable = TextTable | ParquetTable | NpyTable

_PARQUET_ROWS, _NPY_ROWS = 1 << 16, 1 << 20
_GZIP_RATIO = 5


@dataclass(frozen=True)
class Inputs:
    """Edge tables with the columns to read of each, the node table, and whether ids are texts."""

    edges: list[tuple[AnyTable, list[Wanted]]]
    nodes: tuple[TextTable | ParquetTable, NodeColumns] | None
    text_ids: bool

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(table.size for table, _ in self.edges) + (self.nodes[0].size if self.nodes else 0)

    def rows(self) -> int:
        """About how many edges there are: exact but for text, where the first lines are measured."""
        return sum(_rows_of(table) for table, _ in self.edges)


def open_inputs(options: IngestOptions, num_nodes: int | None, budget: Budget, at_once: int, threads: int) -> Inputs:
    """Open every file, find its columns, and decide what ids are."""
    kinds = {kind_of(path, options.format) for path in options.edges}
    if len(kinds) > 1:
        raise IngestError(f"edges are of several kinds ({', '.join(sorted(kinds))}): import files of one kind at a time")
    kind = kinds.pop()
    if kind == "npy" and options.weight_column is not None:
        raise IngestError("weight_column: a .npy edge list has no weights: use Parquet or text")
    block = min(budget.block, 4 * at_once)
    tables: list[tuple[AnyTable, list[int]]] = []
    wanted_columns = (options.src_column, options.dst_column, options.weight_column)
    for path in options.edges:
        require_file(path, "edges")
        table = _open(path, kind, options, wanted_columns, block, at_once, threads)
        if table is not None:
            tables.append((table, _edge_columns(table, options)))
    if not tables:
        named = ", ".join(map(str, options.edges))
        raise IngestError(f"{named}: {'the file is' if len(options.edges) == 1 else 'the files are'} empty: there are no edges")

    nodes = _open_nodes(options, block, budget, threads) if options.nodes is not None else None
    integer = options.ids == "int" or num_nodes is not None
    if options.ids == "auto" and not integer:
        integer = all(looks_integer(table, columns[:2]) for table, columns in tables)
        integer = integer and (nodes is None or looks_integer(nodes[0], [nodes[1][0]]))
    hint = ": if ids are texts, say ids string" if options.ids == "auto" and num_nodes is None else ""
    id_kind: Kind = "int" if integer else "text"
    edges: list[tuple[AnyTable, list[Wanted]]] = []
    for table, columns in tables:
        wanted = [
            Wanted(columns[0], "source id", id_kind, num_nodes, hint),
            Wanted(columns[1], "target id", id_kind, num_nodes, hint),
        ]
        wanted += [Wanted(at, "weight", "number") for at in columns[2:]]
        edges.append((table, wanted))
    if nodes is None:
        return Inputs(edges, None, not integer)
    return Inputs(edges, (nodes[0], _node_columns(nodes, options, id_kind, num_nodes, hint)), not integer)


def _open(
    path: Path, kind: str, options: IngestOptions, columns: tuple[Column, ...], block: int, at_once: int, threads: int
) -> AnyTable | None:
    if kind == "text":
        return open_text_table(path, options, columns, block, threads)
    if kind == "parquet":
        return ParquetTable(path, min(_PARQUET_ROWS, at_once))
    return NpyTable(path, min(_NPY_ROWS, at_once))


def _width(table: AnyTable) -> int:
    return table.head.width if isinstance(table, TextTable) else 2 if isinstance(table, NpyTable) else len(table.names)


def _edge_columns(table: AnyTable, options: IngestOptions) -> list[int]:
    width = _width(table)
    columns = [
        column_index(table.path, options.src_column, table.names, width, "src_column", 0),
        column_index(table.path, options.dst_column, table.names, width, "dst_column", 1),
    ]
    if options.weight_column is not None:
        columns.append(column_index(table.path, options.weight_column, table.names, width, "weight_column", 2))
    if len(set(columns)) < len(columns):
        raise IngestError(f"{table.path}: src_column, dst_column and weight_column must be different columns")
    if isinstance(table, ParquetTable):
        for at, argument in zip(columns, ("src_column", "dst_column", "weight_column"), strict=False):
            _require_type(table, at, argument, "number" if argument == "weight_column" else "id")
    return columns


def _require_type(table: ParquetTable, at: int, argument: str, use: str) -> None:
    kind = table.schema.field(at).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_binary(value)
    fine = text or pa.types.is_integer(value)
    if use != "id":
        fine = fine or pa.types.is_floating(value) or pa.types.is_boolean(value)
    if not fine:
        needs = "integers or strings" if use == "id" else "numbers" if use == "number" else "numbers or strings"
        raise IngestError(f"{argument}: column {table.names[at]!r} of {table.path} holds {kind}: it must hold {needs}")


def _open_nodes(options: IngestOptions, block: int, budget: Budget, threads: int) -> tuple[TextTable | ParquetTable, list[int]]:
    assert options.nodes is not None
    require_file(options.nodes, "nodes")
    kind = kind_of(options.nodes)
    if kind == "npy":
        raise IngestError(f"nodes: {options.nodes} is no table: give .npy arrays with features, labels and split")
    named: tuple[Column, ...] = (options.id_column, options.label_column, options.split_column, *options.feature_columns)
    at_once = budget.items(64 + 64 * max(16, len(options.feature_columns)))
    table = _open(options.nodes, kind, options, _header_evidence(named), block, at_once, threads)
    if table is None:
        raise IngestError(f"nodes: {options.nodes} is empty: leave it out, or give a table of nodes")
    assert not isinstance(table, NpyTable)
    names, width = table.names, _width(table)
    columns = [column_index(table.path, options.id_column, names, width, "id_column", 0)]
    for argument in ("label_column", "split_column"):
        column = getattr(options, argument)
        columns.append(-1 if column is None else column_index(table.path, column, names, width, argument, 0))
    columns += [column_index(table.path, column, names, width, "feature_columns", 0) for column in options.feature_columns]
    used = [at for at in columns if at >= 0]
    if len(set(used)) < len(used):
        raise IngestError(f"{table.path}: a column is named twice among id, label, split and features")
    return table, columns


def _header_evidence(named: tuple[Column, ...]) -> tuple[Column, ...]:
    """The columns by which to tell a header: only the ids, and any given by name."""
    return (named[0], *(c for c in named[1:] if isinstance(c, str) and not c.isdigit())) if len(named) > 1 else named


def _node_columns(
    nodes: tuple[TextTable | ParquetTable, list[int]], options: IngestOptions, kind: Kind, num_nodes: int | None, hint: str
) -> NodeColumns:
    table, (id_at, label_at, split_at, *feature_at) = nodes
    features = []
    for name, at in zip(options.feature_columns, feature_at, strict=True):
        width = _list_width(table, at)
        if width is not None and len(feature_at) > 1:
            raise IngestError(f"feature_columns: {name!r} is a list column: it must be the only one")
        features.append(Wanted(at, f"feature {name}", "feature" if width is None else "list", width))
    if isinstance(table, ParquetTable):
        _require_type(table, id_at, "id_column", "id")
        for at, argument in ((label_at, "label_column"), (split_at, "split_column")):
            if at >= 0:
                _require_type(table, at, argument, "word")
        for want in features:
            if want.kind == "feature":
                _require_type(table, want.index, "feature_columns", "number")
    return NodeColumns(
        id=Wanted(id_at, "node id", kind, num_nodes, hint),
        label=None if label_at < 0 else Wanted(label_at, "label", "word"),
        split=None if split_at < 0 else Wanted(split_at, "split", "word"),
        features=tuple(features),
    )


def _list_width(table: TextTable | ParquetTable, at: int) -> int | None:
    """Values in each list of a Parquet list column, by its type or its first row; None where it is no list."""
    if not isinstance(table, ParquetTable):
        return None
    kind = table.schema.field(at).type
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    for batch in table.batches([Wanted(at, "", "list", 0)]):
        for value in batch.columns[0]:
            if value.is_valid:
                return len(value)
    return 0


def _rows_of(table: AnyTable) -> int:
    if not isinstance(table, TextTable):
        return int(table.num_rows)
    rows = [table.head.first, *table.head.sample]
    each = sum(len(field.encode()) + 1 for row in rows for field in row) / len(rows)
    size = table.size * (_GZIP_RATIO if table.path.suffix == ".gz" else 1)
    return int(size / each) + 1
