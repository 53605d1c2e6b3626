"""Who owns which node: found by name, and written down so that every part has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from torch import Tensor

from headrace.cluster.parts.ldg import ldg
from headrace.graph import Graph
from headrace.graph.reorder.orders import metis_parts
from headrace.store import HashOwners, TableOwners, hash_owners

By = Literal["hash", "ldg", "metis"]


def check_by(by: str) -> None:
    """ValueError unless `by` names a way to find owners."""
    if by not in get_args(By):
        raise ValueError(f"there is no partition by {by!r}: choose one of {', '.join(get_args(By))}")


def owners_by(
    by: By, graph: Graph, parts: int, *, progress: Callable[[int, int], None] | None = None, threads: int | None = None
) -> HashOwners | TableOwners:
    """The owners of all nodes: by arithmetic ("hash"), or so that few edges join two parts ("ldg", "metis")."""
    check_by(by)
    if by == "hash":
        return hash_owners(graph.num_nodes, parts)
    if by == "ldg":
        return TableOwners(ldg(graph, parts, progress=progress), parts)
    return TableOwners(metis_parts(graph, parts, what="a partition by 'metis'", threads=threads), parts)


def owners_entry(owners: HashOwners | TableOwners) -> dict[str, Any]:
    """What `meta.json` says of owners. A table is an array beside it."""
    if isinstance(owners, HashOwners):
        return {"kind": "hash", "factor": owners.factor, "shift": owners.shift}
    return {"kind": "table", "fingerprint": owners.fingerprint}


def owners_from(entry: dict[str, Any], *, num_nodes: int, parts: int, table: Tensor | None) -> HashOwners | TableOwners:
    """The owners that `owners_entry` was made of."""
    if entry["kind"] == "hash":
        return HashOwners(num_nodes, parts, entry["factor"], entry["shift"])
    if entry["kind"] != "table" or table is None:
        raise ValueError(f"it names owners by {entry['kind']!r} and has no table of them")
    return TableOwners(table, parts)
