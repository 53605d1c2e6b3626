"""Who owns which node: found by name, and written down so that every part has it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

from torch import Tensor

from headrace.cluster.parts.ldg import ldg
from headrace.graph import Graph
from headrace.graph.reorder.orders import metis_parts, rabbit
from headrace.graph.topology.permutation import inverse
from headrace.store import HashOwners, TableOwners, hash_owners

By = Literal["hash", "ldg", "rabbit", "metis"]
Progress = Callable[[str, int, int | None], None]  # what is done, how much of it, of how much
_REFINED = 4  # rounds of LDG after the parts of an order, which change little more


def check_by(by: str) -> None:
    """ValueError unless `by` names a way to find owners."""
    if by not in get_args(By):
        raise ValueError(f"there is no partition by {by!r}: choose one of {', '.join(get_args(By))}")


def owners_by(by: By, graph: Graph, parts: int, *, progress: Progress, threads: int | None = None) -> HashOwners | TableOwners:
    """The owners of all nodes: by arithmetic ("hash"), or so that few edges join two parts (the others).

    "ldg" needs memory for nodes alone. "rabbit" cuts the Rabbit order, where communities are together, into even blocks, and lets
    LDG improve them: as few edges cut as METIS on many graphs, without its package.
    """
    check_by(by)
    assign = partial(progress, "finding owners")
    assign(0, None)
    if by == "hash":
        return hash_owners(graph.num_nodes, parts)
    if by == "ldg":
        return TableOwners(ldg(graph, parts, progress=assign), parts)
    if by == "rabbit":
        order = rabbit(graph, progress=partial(progress, "ordering"), threads=threads)
        blocks = inverse(order, threads=threads) * parts // max(1, graph.num_nodes)
        return TableOwners(ldg(graph, parts, start=blocks, passes=_REFINED, progress=assign), parts)
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
