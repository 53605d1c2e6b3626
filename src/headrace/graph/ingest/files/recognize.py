"""What columns hold where nobody said it, told from names and from the first rows: triples, and kinds of times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.graph.ingest.files.columns import Kind, seconds_of
from headrace.graph.ingest.files.head import INTEGER
from headrace.graph.ingest.problems import IngestError, quoted

_RELATION = frozenset({"relation", "rel", "relation_id", "rel_id", "predicate", "property", "relationship", "edge_type", "r", "p"})


def is_relation_name(name: str) -> bool:
    """Whether a column of this name holds relations."""
    return name.strip().lower().lstrip("~:#") in _RELATION


def holds_triples(rows: Sequence[Sequence[str]]) -> bool:
    """Whether rows of three columns are (head, relation, tail): the middle one holds names that are no ids of the others.

    Of integers that cannot be told: `7 1 9` may as well be an edge with a weight.

    >>> holds_triples([("ada", "knows", "bob"), ("bob", "likes", "cid"), ("ada", "likes", "cid")])
    True
    >>> holds_triples([("ada", "bob", "friend"), ("bob", "cid", "friend")])
    False
    """
    full = [row for row in rows if len(row) == 3 and all(field.strip() for field in row)]
    if not full:
        return False
    head, middle, tail = ({row[at] for row in full} for at in range(3))
    if any(_is_number(text) for text in middle) or middle & (head | tail):
        return False
    outer_are_numbers = all(INTEGER.fullmatch(text) for text in head | tail)
    few = 4 * len(middle) <= min(len(head), len(tail))
    return len(middle) <= len(tail) and (bool(head & tail) or few or outer_are_numbers)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def time_kind(values: Sequence[str], path: Path) -> Kind:
    """How times are written: whole numbers, numbers or dates, as most of the first rows have them."""
    texts = [text.strip() for text in values if text.strip()]
    for kind, fits in (
        ("whole", lambda text: INTEGER.fullmatch(text) is not None),
        ("real", _is_number),
        ("date", lambda text: seconds_of(text) is not None),
    ):
        if texts and 2 * sum(map(fits, texts)) > len(texts):
            return kind  # type: ignore[return-value]
    shown = quoted(texts[0]) if texts else "nothing"
    raise IngestError(
        f"time_column: {path} has {shown}, which is no time: it must hold numbers, or dates such as 2024-05-31 12:30:00"
    )
