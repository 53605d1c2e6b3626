"""What an import takes from each file, with its first rows: shown before the work begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.graph.ingest.files.columns import Kind
from headrace.graph.ingest.files.tables import AnyTable, NpyTable, width_of
from headrace.graph.ingest.files.text import TextTable
from headrace.graph.ingest.inputs import EdgeInput, Inputs
from headrace.graph.ingest.node_inputs import NodeInput

_ROWS = 3
_ENDS = ("source", "target")
_TIMES: dict[Kind, str] = {"whole": "whole numbers", "real": "numbers", "date": "dates, kept as seconds since 1970"}


@dataclass(frozen=True)
class Understood:
    """One file: what it is, what each of its columns is called and read as ("" for one that is not read), and first rows."""

    path: Path
    what: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def understanding(inputs: Inputs) -> list[Understood]:
    """What is read from every file."""
    files = [_of_edges(inputs, read, first=number == 0) for number, read in enumerate(inputs.edges)]
    return files + [_of_nodes(inputs, read) for read in inputs.nodes]


def _of_edges(inputs: Inputs, read: EdgeInput, *, first: bool) -> Understood:
    source, name, target = read.kind
    what = f"edges {source}-{name}-{target}" if name else ("edges", "edges to validate by", "edges to test by")[read.split]
    ends = ("head", "tail") if "relation" in read.names else _ENDS
    kinds = [f"{end}, {_id_words(inputs.text_ids[kind])}" for end, kind in zip(ends, (source, target), strict=True)]
    uses = {"relation": f"relation, {_id_words(inputs.text_relations)}", "time": f"time, {_TIMES.get(inputs.time or 'whole', '')}"}
    kinds += ["feature" if name == "features" else uses.get(name, name) for name in read.names]
    read_as = {want.index: kind for want, kind in zip(read.wanted, kinds, strict=True)}
    return _file(read.table, what, read_as, (*inputs.notes,) if first else ())


def _of_nodes(inputs: Inputs, read: NodeInput) -> Understood:
    assert read.wanted is not None
    read_as = {read.wanted.id.index: f"id, {_id_words(inputs.text_ids[read.kind])}"}
    for use, want in (("label", read.wanted.label), ("split", read.wanted.split)):
        if want is not None:
            read_as[want.index] = use
    read_as |= {want.index: "feature" if want.kind == "feature" else f"{want.below} features" for want in read.wanted.features}
    return _file(read.table, f"nodes {read.kind}".strip(), read_as, ())


def _file(table: AnyTable, what: str, read_as: dict[int, str], notes: tuple[str, ...]) -> Understood:
    names = table.names or tuple(str(at) for at in range(width_of(table)))
    rows = tuple(tuple(row) for row in table.sample()[:_ROWS])
    if isinstance(table, TextTable):
        marks = {"\t": "tab", " ": "space"}
        header = "the first line names the columns" if table.names is not None else "no line of column names: columns by number"
        notes = (f"{header}; between columns: {marks.get(table.head.delimiter, table.head.delimiter)}", *notes)
    columns = tuple((name, read_as.get(at, "")) for at, name in enumerate(names))
    if unread := [name for name, use in columns if not use] if not isinstance(table, NpyTable) else []:
        notes = (*notes, f"not read: {', '.join(unread[:8])}{' ...' if len(unread) > 8 else ''}")
    return Understood(table.path, what, columns, rows, notes)


def _id_words(text: bool) -> str:
    return "texts" if text else "integers"
