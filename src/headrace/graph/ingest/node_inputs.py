"""The node tables of an import, opened and understood: which columns hold ids, labels, splits and features."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.graph.ingest.files.columns import Kind, Wanted
from headrace.graph.ingest.files.named_files import NodeFile
from headrace.graph.ingest.files.tables import (
    NpyTable,
    ParquetTable,
    column_index,
    kind_of,
    open_table,
    require_file,
    require_type,
    width_of,
)
from headrace.graph.ingest.files.text import TextTable
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.nodes import NodeColumns
from headrace.graph.ingest.options import Column, IngestOptions
from headrace.graph.ingest.problems import IngestError


@dataclass(frozen=True)
class NodeInput:
    """A node table of a type: where ids, labels and splits stand (-1 where it has none), then features; and what to read."""

    table: TextTable | ParquetTable
    columns: list[int]
    features: tuple[str, ...]
    kind: str = ""
    wanted: NodeColumns | None = None

    @property
    def width(self) -> int:
        """Features of a node."""
        return 0 if self.wanted is None else self.wanted.width

    def has(self, argument: str) -> bool:
        """Whether the table has the column that `label_column` or `split_column` names."""
        return self.columns[("label_column", "split_column").index(argument) + 1] >= 0

    def understood(self, kind: Kind, num_nodes: int | None, hint: str) -> NodeInput:
        """The same with the columns to read, once it is known what ids are."""
        return replace(self, wanted=_node_columns(self, kind, num_nodes, hint))


def open_nodes(file: NodeFile, options: IngestOptions, block: int, budget: Budget, threads: int) -> NodeInput:
    """Open a node table. Where nodes have types, a table has those of the named columns that are in its header."""
    require_file(file.path, "nodes")
    kind = kind_of(file.path)
    if kind == "npy":
        raise IngestError(f"nodes: {file.path} is no table: give .npy arrays with features, labels and split")
    named: tuple[Column, ...] = (options.id_column, options.label_column, options.split_column, *options.feature_columns)
    at_once = budget.items(64 + 64 * max(16, len(options.feature_columns)))
    table = open_table(file.path, kind, options, _header_evidence(named), block, at_once, threads)
    if table is None:
        raise IngestError(f"nodes: {file.path} is empty: leave it out, or give a table of nodes")
    assert not isinstance(table, NpyTable)
    names, width = table.names, width_of(table)

    def place(column: Column, argument: str) -> int:
        if file.kind and argument != "id_column" and column not in (names or ()):
            return -1
        return column_index(table.path, column, names, width, argument, 0)

    columns = [place(options.id_column, "id_column")]
    for argument in ("label_column", "split_column"):
        column = getattr(options, argument)
        columns.append(-1 if column is None else place(column, argument))
    features = {column: place(column, "feature_columns") for column in options.feature_columns}
    features = {column: at for column, at in features.items() if at >= 0}
    columns += features.values()
    used = [at for at in columns if at >= 0]
    if len(set(used)) < len(used):
        raise IngestError(f"{table.path}: a column is named twice among id, label, split and features")
    return NodeInput(table, columns, tuple(features), file.kind)


def _header_evidence(named: tuple[Column, ...]) -> tuple[Column, ...]:
    """The columns by which to tell a header: only the ids, and any given by name."""
    return (named[0], *(c for c in named[1:] if isinstance(c, str) and not c.isdigit())) if len(named) > 1 else named


def _node_columns(read: NodeInput, kind: Kind, num_nodes: int | None, hint: str) -> NodeColumns:
    table, (id_at, label_at, split_at, *feature_at) = read.table, read.columns
    features = []
    for name, at in zip(read.features, feature_at, strict=True):
        width = _list_width(table, at)
        if width is not None and len(feature_at) > 1:
            raise IngestError(f"feature_columns: {name!r} is a list column: it must be the only one")
        features.append(Wanted(at, f"feature {name}", "feature" if width is None else "list", width))
    if isinstance(table, ParquetTable):
        require_type(table, id_at, "id_column", "id")
        for at, argument in ((label_at, "label_column"), (split_at, "split_column")):
            if at >= 0:
                require_type(table, at, argument, "word")
        for want in features:
            if want.kind == "feature":
                require_type(table, want.index, "feature_columns", "number")
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
