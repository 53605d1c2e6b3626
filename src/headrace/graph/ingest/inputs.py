"""The files of an import, opened and understood before anything long begins: which columns, and what ids are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from headrace.graph.hetero import EdgeType
from headrace.graph.ingest.files.columns import Kind, Wanted
from headrace.graph.ingest.files.named_files import EdgeFile
from headrace.graph.ingest.files.recognize import holds_triples, is_relation_name, time_kind
from headrace.graph.ingest.files.tables import (
    AnyTable,
    ParquetTable,
    column_index,
    first_rows,
    kind_of,
    looks_integer,
    open_table,
    require_file,
    require_type,
    width_of,
)
from headrace.graph.ingest.files.text import TextTable
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.node_inputs import NodeInput, open_nodes
from headrace.graph.ingest.options import Column, IngestOptions
from headrace.graph.ingest.problems import IngestError

_GZIP_RATIO = 5
_OPTIONS = ("weight_column", "relation_column", "time_column", "edge_feature_columns")


@dataclass(frozen=True)
class EdgeInput:
    """An edge table: the columns to read, ids of sources and targets first, and `names` of those after them.

    Nodes of one type, where none are told apart, are of type "".
    """

    table: AnyTable
    wanted: list[Wanted]
    names: tuple[str, ...]  # among weight, time, relation, and features, which come last, as often as there are columns
    split: int = 0
    kind: EdgeType = ("", "", "")

    def index(self, name: str) -> int:
        """Where a column stands among those that are read."""
        return 2 + self.names.index(name)


@dataclass(frozen=True)
class Inputs:
    """What is read: edge tables, node tables, which types of nodes have texts for ids, and what was found out on the way."""

    edges: list[EdgeInput]
    nodes: list[NodeInput]
    text_ids: dict[str, bool]  # by type, in the order of their ids
    text_relations: bool
    edge_types: list[EdgeType]
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(read.table.size for read in self.edges) + sum(read.table.size for read in self.nodes)

    @property
    def time(self) -> Kind | None:
        """How times are written, where there are any."""
        read = self.edges[0]
        return read.wanted[read.index("time")].kind if "time" in read.names else None

    @property
    def has_relations(self) -> bool:
        """Whether edges are triples."""
        return bool(self.edge_types) or "relation" in self.edges[0].names

    @property
    def num_features(self) -> int:
        """Feature columns of the edges."""
        return self.edges[0].names.count("features")

    def rows(self) -> int:
        """About how many edges there are: exact but for text, where the first lines are measured."""
        return sum(_rows_of(read.table) for read in self.edges)


def open_inputs(options: IngestOptions, num_nodes: int | None, budget: Budget, at_once: int, threads: int) -> Inputs:
    """Open every file, find its columns, and decide what ids are."""
    files, notes = options.edge_files, list[str]()
    kind = _one_kind(files, options)
    block = min(budget.block, 4 * at_once)
    tables: list[tuple[EdgeFile, AnyTable]] = []
    triples = _are_triples(files, kind, options)
    for file in files:
        table = open_table(file.path, kind, options, _header_evidence(options, triples), block, at_once, threads)
        if table is not None:
            tables.append((file, table))
    if not any(file.split == 0 for file, _ in tables):
        named = ", ".join(str(file.path) for file in files if file.split == 0)
        raise IngestError(f"{named}: {'the file is' if len(options.edges) == 1 else 'the files are'} empty: there are no edges")
    if triples:
        notes.append("the edges are triples (head, relation, tail), by the middle column; if they are not, say dst_column")
    layouts = [_layout(table, options, triples) for _, table in tables]
    if (options.val_triples or options.test_triples) and not any("relation" in layout for layout in layouts):
        raise IngestError(
            "val_triples and test_triples are for triples: say relation_column; of other edges training holds some out"
        )

    nodes = [open_nodes(file, options, block, budget, threads) for file in options.node_files]
    _require_columns(nodes, options)
    kinds = [file.kind or ("", "", "") for file, _ in tables]
    id_columns: dict[str, list[tuple[AnyTable, int]]] = {read.kind: [(read.table, read.columns[0])] for read in nodes}
    for (_, table), (source, _, target), layout in zip(tables, kinds, layouts, strict=True):
        id_columns.setdefault(source, []).append((table, layout["src"][0]))
        id_columns.setdefault(target, []).append((table, layout["dst"][0]))
    text_ids = {kind: not _integers(columns, options, num_nodes) for kind, columns in id_columns.items()}
    hint = ": if ids are texts, say ids string" if options.ids == "auto" and num_nodes is None else ""
    relations = [(table, layout["relation"]) for (_, table), layout in zip(tables, layouts, strict=True) if "relation" in layout]
    text_relations = not all(looks_integer(table, columns) for table, columns in relations)
    times = _time_kind(tables, layouts)

    def id_kind(of: str) -> Kind:
        return "text" if text_ids[of] else "int"

    edges: list[EdgeInput] = []
    for (file, table), (source, name, target), layout in zip(tables, kinds, layouts, strict=True):
        wanted = [
            Wanted(layout["src"][0], "source id", id_kind(source), num_nodes, hint),
            Wanted(layout["dst"][0], "target id", id_kind(target), num_nodes, hint),
        ]
        how: dict[str, Kind] = {"weight": "number", "time": times}
        how |= {"relation": "text" if text_relations else "whole", "features": "number"}
        names = [what for what in how for _ in layout.get(what, ())]
        more = [Wanted(at, "feature" if what == "features" else what, how[what]) for what in how for at in layout.get(what, ())]
        edges.append(EdgeInput(table, wanted + more, tuple(names), file.split, (source, name, target)))
    read_nodes = [read.understood(id_kind(read.kind), num_nodes, hint) for read in nodes]
    return Inputs(edges, read_nodes, text_ids, text_relations, list(dict.fromkeys(kinds)) if options.typed else [], notes)


def _one_kind(files: Sequence[EdgeFile], options: IngestOptions) -> str:
    kinds = {kind_of(file.path, options.format) for file in files}
    if len(kinds) > 1:
        raise IngestError(f"edges are of several kinds ({', '.join(sorted(kinds))}): import files of one kind at a time")
    kind = kinds.pop()
    if kind == "npy":
        for name in _OPTIONS:
            if getattr(options, name) not in (None, ()):
                raise IngestError(f"{name}: a .npy edge list has only sources and targets: use Parquet or text")
        if options.val_triples or options.test_triples:
            raise IngestError("val_triples and test_triples are for triples, which a .npy edge list has not: use Parquet or text")
    for file in files:
        require_file(file.path, ("edges", "val_triples", "test_triples")[file.split])
    return kind


def _are_triples(files: Sequence[EdgeFile], kind: str, options: IngestOptions) -> bool:
    """Whether the first three columns are head, relation and tail, where no option says what they are."""
    columns = (options.src_column, options.dst_column, options.relation_column, options.weight_column, options.time_column)
    said = any(str(column) in ("0", "1", "2") for column in (*columns[3:], *options.edge_feature_columns))
    if kind == "npy" or options.typed or said or any(column is not None for column in columns[:3]):
        return False
    names, rows = first_rows(files[0].path, kind, options)
    if names is not None and len(names) > 2 and is_relation_name(names[1]):
        return True
    if rows and len(rows[0]) > 2 and options.header != "no" and is_relation_name(rows[0][1]):
        return True
    return bool(rows) and len(rows[0]) == 3 and holds_triples([tuple(row) for row in rows[1 if options.header == "yes" else 0 :]])


def _header_evidence(options: IngestOptions, triples: bool) -> tuple[Column, ...]:
    """The columns by which to tell a header: the ids, and any given by name."""
    used = [str(c) for c in (options.relation_column, options.time_column, options.weight_column, *options.edge_feature_columns)]
    free = [at for at in range(8) if str(at) not in (*used, str(options.src_column), str(options.dst_column))]
    source = options.src_column if options.src_column is not None else free.pop(0)
    target = options.dst_column if options.dst_column is not None else 2 if triples else free.pop(0)
    return (source, target, *(column for column in used if column != "None" and not column.isdigit()))


def _layout(table: AnyTable, options: IngestOptions, triples: bool) -> dict[str, list[int]]:
    """Which columns hold what: "src", "dst", and those of "relation", "weight", "time" and "features" that there are."""
    width, names = width_of(table), table.names
    layout: dict[str, list[int]] = {}
    for what, argument in (("relation", "relation_column"), ("weight", "weight_column"), ("time", "time_column")):
        column = getattr(options, argument)
        if column is not None or (what == "relation" and triples):
            layout[what] = [column_index(table.path, column, names, width, argument, 1)]
    if options.edge_feature_columns:
        columns = options.edge_feature_columns
        layout["features"] = [column_index(table.path, column, names, width, "edge_feature_columns", 0) for column in columns]
    used = {at for places in layout.values() for at in places}
    ends = {"src": options.src_column, "dst": options.dst_column}
    of_ends = {what: column_index(table.path, c, names, width, f"{what}_column", 0) for what, c in ends.items() if c is not None}
    free = [at for at in range(width) if at not in used | set(of_ends.values())]
    for number, what in enumerate(ends):
        if what not in of_ends:
            at = free.pop(0) if free else max(width, number)
            of_ends[what] = column_index(table.path, None, names, width, f"{what}_column", at)
    layout = {what: [at] for what, at in of_ends.items()} | layout
    places = [at for several in layout.values() for at in several]
    if len(set(places)) < len(places):
        raise IngestError(f"{table.path}: sources, targets and what else is read of an edge must be different columns")
    if isinstance(table, ParquetTable):
        uses = {"src": "id", "dst": "id", "relation": "id", "weight": "number", "features": "number"}
        arguments = {"src": "src_column", "dst": "dst_column", "features": "edge_feature_columns"}
        for what, several in layout.items():
            for at in several if what in uses else ():
                require_type(table, at, arguments.get(what, f"{what}_column"), uses[what])
    return {what: layout[what] for what in ("src", "dst", "relation", "weight", "time", "features") if what in layout}


def _integers(columns: Sequence[tuple[AnyTable, int]], options: IngestOptions, num_nodes: int | None) -> bool:
    """Whether the ids of a type of nodes are integers: as told, or by the first rows of every column that has them."""
    if options.ids != "auto" or num_nodes is not None:
        return options.ids == "int" or num_nodes is not None
    return all(looks_integer(table, [at]) for table, at in columns)


def _time_kind(tables: Sequence[tuple[EdgeFile, AnyTable]], layouts: Sequence[dict[str, list[int]]]) -> Kind:
    kinds: dict[Kind, Path] = {}
    for (_, table), layout in zip(tables, layouts, strict=True):
        if "time" in layout:
            at = layout["time"][0]
            kinds.setdefault(_time_kind_of(table, at), table.path)
    if "date" in kinds and len(kinds) > 1:
        dates, numbers = kinds.pop("date"), next(iter(kinds.values()))
        raise IngestError(f"time_column: {dates} has dates and {numbers} has numbers: write times of all files in one way")
    return "real" if "real" in kinds else next(iter(kinds), "whole")


def _time_kind_of(table: AnyTable, at: int) -> Kind:
    if isinstance(table, ParquetTable):
        kind = table.schema.field(at).type
        if pa.types.is_integer(kind):
            return "whole"
        if pa.types.is_floating(kind):
            return "real"
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            return "date"
    return time_kind([row[at] for row in table.sample() if at < len(row)], table.path)


def _require_columns(nodes: Sequence[NodeInput], options: IngestOptions) -> None:
    """Of several node tables each has some of the columns that are asked for: refuse what none has, or two have."""
    if not options.typed:
        return
    names = [read.table.names or () for read in nodes]
    for argument in ("label_column", "split_column", "feature_columns"):
        columns = getattr(options, argument)
        for column in columns if isinstance(columns, tuple) else [columns]:
            if column is not None and not any(column in known for known in names):
                raise IngestError(f"{argument}: no node table has a column {column!r}")
    for argument, what in (("label_column", "labels"), ("split_column", "splits")):
        having = [read.kind for read in nodes if read.has(argument)]
        if len(having) > 1:
            raise IngestError(f"{argument}: both {having[0]} and {having[1]} have {what}: rename the column of one of them")


def _rows_of(table: AnyTable) -> int:
    if not isinstance(table, TextTable):
        return int(table.num_rows)
    rows = [table.head.first, *table.head.sample]
    each = sum(len(field.encode()) + 1 for row in rows for field in row) / len(rows)
    size = table.size * (_GZIP_RATIO if table.path.suffix == ".gz" else 1)
    return int(size / each) + 1
