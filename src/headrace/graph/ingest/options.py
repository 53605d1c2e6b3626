"""What to import and how: every option with its default and its help line, and what came of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from headrace.graph.graph import SelfLoops
from headrace.graph.ingest.files.named_files import EdgeFile, NodeFile, edge_files, node_files
from headrace.graph.ingest.memory import parse_size
from headrace.graph.ingest.problems import IngestError

Format = Literal["auto", "csv", "tsv", "parquet", "npy"]
Header = Literal["auto", "yes", "no"]
Ids = Literal["auto", "int", "string"]
Column = str | int | None


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True)
class IngestOptions:
    """Every option of an import; the command line and the documentation take their help lines from here."""

    edges: tuple[Path, ...] = field(
        metadata=_help("Edge lists of one kind: .csv, .tsv, .txt (also .gz), .parquet or .npy; or author:writes:paper=FILE.")
    )
    output: Path = field(metadata=_help("The dataset directory to write; a dataset that is there is replaced at the end."))
    format: Format = field(
        default="auto", metadata=_help("Kind of the edge lists, where their names do not say it: csv, tsv, parquet or npy.")
    )
    src_column: Column = field(
        default=None, metadata=_help("Column of the sources: a name or a number from 0. Default: the first.")
    )
    dst_column: Column = field(
        default=None, metadata=_help("Column of the targets: a name or a number from 0. Default: the second.")
    )
    weight_column: Column = field(default=None, metadata=_help("Column of the edge weights (float32). Default: no weights."))
    relation_column: Column = field(
        default=None, metadata=_help("Column of the relations, integers or names: each edge is then a triple. Default: none.")
    )
    time_column: Column = field(
        default=None,
        metadata=_help("Column of the edge times, numbers or dates; edges are put in their order. Default: no times."),
    )
    edge_feature_columns: tuple[str, ...] = field(default=(), metadata=_help("Feature columns of the edges, by comma."))
    val_triples: Path | None = field(
        default=None, metadata=_help("Triples to validate by, in a file like the edges. Default: training holds some out.")
    )
    test_triples: Path | None = field(default=None, metadata=_help("Triples to test by, in a file like the edges."))
    header: Header = field(default="auto", metadata=_help("Whether text files begin with column names: auto, yes or no."))
    delimiter: str | None = field(
        default=None, metadata=_help("The character between columns. Default: found in the first line; tab for .tsv.")
    )
    comment: str = field(default="#", metadata=_help("Leading lines that begin with this are skipped; empty for none."))
    ids: Ids = field(default="auto", metadata=_help("How ids are read: auto, int or string. auto looks at the first rows."))
    num_nodes: int | None = field(
        default=None, metadata=_help("Use integer ids as they are, from 0 to this number less 1. Default: number the ids.")
    )
    undirected: bool = field(default=False, metadata=_help("Add the reverse of every edge."))
    deduplicate: bool = field(default=False, metadata=_help("Keep the first of equal edges; rows are then sorted by source."))
    self_loops: SelfLoops = field(
        default="keep", metadata=_help("Self loops: keep, add (one to every node that has none) or drop.")
    )
    edge_ids: bool = field(default=False, metadata=_help("Keep each edge's position among the rows that were read."))
    nodes: tuple[Path, ...] = field(
        default=(), metadata=_help("Table of nodes (text or Parquet): ids, labels, splits, features. Once a type: author=FILE.")
    )
    id_column: Column = field(default=None, metadata=_help("Column of the ids in the node table. Default: the first."))
    label_column: Column = field(
        default=None, metadata=_help("Column of the labels in the node table, integers or names of classes.")
    )
    split_column: Column = field(default=None, metadata=_help("Column of the node table that says train, val or test."))
    feature_columns: tuple[str, ...] = field(
        default=(), metadata=_help("Feature columns of the node table, by comma; or one Parquet list column.")
    )
    features: Path | None = field(
        default=None, metadata=_help("Features as .npy, row i for node i; ids are then used as they are.")
    )
    labels: Path | None = field(default=None, metadata=_help("Labels as .npy, entry i for node i; ids are then used as they are."))
    split: Path | None = field(
        default=None, metadata=_help("Splits as .npy: train, val, test (or 0, 1, 2; -1 for none), entry i for node i.")
    )
    skip_bad: bool = field(default=False, metadata=_help("Skip and count bad rows instead of stopping at the first."))
    memory: int | str = field(default="1GiB", metadata=_help("The most memory the process may hold, such as 600MiB or 2GB."))
    threads: int | None = field(default=None, metadata=_help("Threads to parse and sort with. Default: every processor."))

    def __post_init__(self) -> None:
        edges = (self.edges,) if isinstance(self.edges, str | os.PathLike) else self.edges
        object.__setattr__(self, "edges", tuple(Path(path) for path in edges))
        nodes = (self.nodes,) if isinstance(self.nodes, str | os.PathLike) else self.nodes or ()
        object.__setattr__(self, "nodes", tuple(Path(path) for path in nodes))
        for name in ("output", "features", "labels", "split", "val_triples", "test_triples"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else Path(value))
        for name in ("feature_columns", "edge_feature_columns"):
            if isinstance(getattr(self, name), str):
                raise IngestError(f"{name} is {getattr(self, name)!r}: give a sequence of names")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "memory", parse_size(self.memory))
        self._check()

    def _check(self) -> None:
        for name, kind in (("format", Format), ("header", Header), ("ids", Ids), ("self_loops", SelfLoops)):
            value, allowed = getattr(self, name), get_args(kind)
            if value not in allowed:
                raise IngestError(f"{name} is {value!r}: choose one of {', '.join(allowed)}")
        if not self.edges:
            raise IngestError("edges names no file: give at least one edge list")
        if self.delimiter is not None and (len(self.delimiter.encode()) != 1 or self.delimiter in '"\r\n'):
            raise IngestError(f"delimiter is {self.delimiter!r}: it must be one character, and no quote or line end")
        if self.num_nodes is not None and self.num_nodes < 0:
            raise IngestError(f"num_nodes is {self.num_nodes}: it must not be negative")
        if self.num_nodes is not None and self.num_nodes >= 2**62:
            raise IngestError(f"num_nodes is {self.num_nodes}: it must be below 2**62")
        if self.threads is not None and self.threads < 1:
            raise IngestError(f"threads is {self.threads}: it must be at least 1")
        if self.ids_as_they_are and self.ids == "string":
            raise IngestError("ids is 'string', but num_nodes and .npy rows need integer ids from 0: leave one of them out")
        if not self.nodes:
            for name in ("id_column", "label_column", "split_column", "feature_columns"):
                if getattr(self, name) not in (None, ()):
                    raise IngestError(f"{name} is given without a node table: name it with nodes")
        for ours, theirs in (("feature_columns", "features"), ("label_column", "labels"), ("split_column", "split")):
            if getattr(self, ours) not in (None, ()) and getattr(self, theirs) is not None:
                raise IngestError(f"{ours} and {theirs} are both given: choose one of them")
        self._check_types()

    def _check_types(self) -> None:
        """Refuse what does not go together where nodes and edges have types, or where edges have files for splits."""
        if not self.typed:
            if len(node_files(self.nodes, typed=False)) > 1:
                raise IngestError("nodes are in several files: of one type give one table; of several, name each as author=FILE")
        else:
            edge_files(self.edges)
            node_files(self.nodes, typed=True)
            if self.ids_as_they_are:
                raise IngestError("num_nodes and .npy rows are for nodes of one type: with types, give node tables")
            if self.relation_column is not None:
                raise IngestError("relation_column is given, but the types of the edges are their relations: leave it out")
            if self.val_triples or self.test_triples:
                raise IngestError("val_triples and test_triples are for triples in files of their own, not for typed edges")
        if (self.val_triples or self.test_triples) and self.edge_feature_columns:
            raise IngestError("edge_feature_columns do not go with val_triples and test_triples: leave one of them out")

    @property
    def typed(self) -> bool:
        """Whether nodes and edges have types: the edge lists are named, as in `author:writes:paper=writes.csv`."""
        return any(file.kind is not None for file in edge_files(self.edges, mixed=True))

    @property
    def edge_files(self) -> list[EdgeFile]:
        """The edge lists, with their types, then those to validate and to test by."""
        held_out = [
            EdgeFile(path, None, split) for split, path in ((1, self.val_triples), (2, self.test_triples)) if path is not None
        ]
        return edge_files(self.edges) + held_out

    @property
    def node_files(self) -> list[NodeFile]:
        """The node tables, with their types."""
        return node_files(self.nodes, typed=self.typed)

    @property
    def ids_as_they_are(self) -> bool:
        """Whether ids are node ids already, as they must be where rows are given by position."""
        return any(value is not None for value in (self.num_nodes, self.features, self.labels, self.split))


@dataclass(frozen=True)
class IngestReport:
    """What an import wrote, and what it took."""

    path: Path
    num_nodes: int
    num_edges: int
    rows: int
    bad_rows: int
    bad_examples: tuple[str, ...]
    nodes_without_row: int
    bytes: int
    seconds: float
    peak_memory: int
    num_relations: int = 0
    put_in_order: bool = False  # whether edges were not in order of time, and are now
