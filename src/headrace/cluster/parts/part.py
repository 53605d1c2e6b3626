"""`Part`: what one rank holds of a dataset that `partition` has cut."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from headrace.cluster.parts.owners import owners_from
from headrace.cluster.parts.share import PLACE, SPLIT
from headrace.graph.saved.io import ArrayReader, read_version
from headrace.graph.saved.kinds import PART, PARTITION, kind_of
from headrace.store import Owners, column_bounds

_SAME = ("parts", "by", "columns", "owners", "num_nodes", "num_edges", "fingerprint")  # in all parts of a partition


def is_partition(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is what `partition` wrote: the directory of all parts, or that of one part.

    >>> is_partition("no/such/place")
    False
    """
    return kind_of(Path(path)) in (PARTITION, PART)


@dataclass(frozen=True, eq=False, repr=False)
class Part:
    """The part of one rank. Tensors are memory-mapped: nothing is read until it is used.

    Row i of the graph is that of node `ids[i]`: `indices[indptr[i] : indptr[i + 1]]` are its in-neighbors, by the ids of the whole
    graph; `weight`, `time` and `edge_id` are in the same order. `x` has the features of `ids`; or, where `columns` is
    (begin, end), these columns of every node's features. `y` has the labels of `ids`. `splits` names the nodes of this part, and
    `places` says where they are in the splits of the whole. The `num_`... count the whole, as does `split_sizes`; `info` and
    `fingerprint` are the dataset's.
    """

    number: int
    parts: int
    by: str
    owners: Owners
    indptr: Tensor
    indices: Tensor
    weight: Tensor | None
    time: Tensor | None
    edge_id: Tensor | None
    x: Tensor | None
    columns: tuple[int, int] | None
    y: Tensor | None
    splits: dict[str, Tensor]
    places: dict[str, Tensor]
    split_sizes: dict[str, int]
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    info: dict[str, Any]
    fingerprint: dict[str, str]

    @classmethod
    def open(cls, path: str | os.PathLike[str], number: int | None = None, *, verify: bool | Literal["small"] = False) -> Part:
        """Open part `number` of the partition at `path`; or the part at `path`, which may be all that a machine has.

        `verify` reads all files of the part and compares checksums, with "small" if they have at most 256 MiB together.
        """
        folder, whole = Path(path), None
        if kind_of(folder) != PART:
            whole = read_version(folder, lambda reader: reader.info, kind=PARTITION)
            number, folder = _checked(number, int(whole["parts"]), folder), folder / f"part-{number}"
            if not folder.exists():
                raise FileNotFoundError(
                    f"{folder} is missing: copy it from where the dataset was partitioned, or partition it again to another place"
                )
        part, about = read_version(folder, lambda reader: _part(cls, reader, verify), kind=PART)
        if number is not None and part.number != number:
            raise ValueError(f"{folder} holds part {part.number}, not part {number}: open the directory of that one")
        if whole is not None and any(whole[name] != about[name] for name in _SAME):
            raise ValueError(f"{folder} is a part of another partition than {path}: copy part {number} of this one there")
        return part

    @cached_property
    def ids(self) -> Tensor:
        """The nodes that this part owns, in the order of its rows.  # -> [nodes of the part]"""
        return self.owners.ids_of(self.number)

    def __repr__(self) -> str:
        about = f"{self.number} of {self.parts} by {self.by}, nodes={len(self.indptr) - 1}, edges={len(self.indices)}"
        features = "" if self.x is None else f", x={list(self.x.shape)}"
        return f"Part({about}{features}, num_nodes={self.num_nodes}, num_edges={self.num_edges})"


def _checked(number: int | None, parts: int, path: Path) -> int:
    if number is None:
        raise ValueError(f"{path} is a partition into {parts} parts: say which one to open, 0 to {parts - 1}")
    if not 0 <= number < parts:
        raise ValueError(f"there is no part {number} in {path}: it has parts 0 to {parts - 1}")
    return number


def _part(cls: type[Part], reader: ArrayReader, verify: bool | Literal["small"]) -> tuple[Part, dict[str, Any]]:
    """The part and what it says of the whole."""
    reader.verify(verify)
    arrays = {name: reader.open(name) for name in reader.names}
    try:
        number, about = reader.info["number"], reader.info["whole"]
        parts, nodes = about["parts"], about["num_nodes"]
        owners = owners_from(about["owners"], num_nodes=nodes, parts=parts, table=arrays.get("owner"))
        if len(arrays["indptr"]) != owners.size(number) + 1:
            raise ValueError(f"it has {len(arrays['indptr']) - 1} rows, and owns {owners.size(number)} nodes")
        part = part_of(number, about, owners, arrays, cls)
    except KeyError as error:
        raise ValueError(f"{reader.path} is damaged: {error} is missing; copy the part again, or partition again") from None
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(f"{reader.path} is damaged: {error}; copy the part again, or partition again") from None
    return part, about


def part_of(number: int, about: dict[str, Any], owners: Owners, arrays: dict[str, Tensor], cls: type[Part] = Part) -> Part:
    """The part of these arrays, named as its files are; `about` is what `describe` says of the whole."""

    def group(prefix: str) -> dict[str, Tensor]:
        return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}

    names = ("parts", "by", "split_sizes", "num_nodes", "num_edges", "num_features", "num_classes", "info", "fingerprint")
    return cls(
        number=number,
        owners=owners,
        indptr=arrays["indptr"],
        indices=arrays["indices"],
        weight=arrays.get("weight"),
        time=arrays.get("time"),
        edge_id=arrays.get("edge_id"),
        x=arrays.get("x"),
        columns=column_bounds(about["num_features"], about["parts"])[number] if about["columns"] else None,
        y=arrays.get("y"),
        splits=group(SPLIT),
        places=group(PLACE),
        **{name: about[name] for name in names},
    )
