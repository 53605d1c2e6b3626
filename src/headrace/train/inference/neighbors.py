"""`neighbors`: the rows nearest to one, and the likeliest ends of its relations, in one pass over all rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.graph import Dataset
from headrace.graph.saved.names import Names
from headrace.nn import Decoder
from headrace.nn.links.distance_decoders import DistanceDecoder
from headrace.train.inference.ranking import ReadRows, scan
from headrace.train.inference.trained_links import open_links


@dataclass(frozen=True)
class Neighbor:
    """A node, what it is called (None where names are not known), and its score: higher is nearer or likelier."""

    node: int
    name: str | int | None
    score: float


@dataclass(frozen=True)
class Neighbors:
    """The nearest rows to one, and with a relation the likeliest tails and heads, best first."""

    node: int
    name: str | int | None
    relation: int | None
    relation_name: str | int | None
    measure: str  # of the nearest: "cosine", or "minus distance" where the decoder compares by distance
    nearest: tuple[Neighbor, ...]
    tails: tuple[Neighbor, ...]
    heads: tuple[Neighbor, ...]

    def as_dict(self) -> dict[str, Any]:
        """The neighbors as `--json` prints them."""
        return asdict(self)


def neighbors(
    run: str | os.PathLike[str],
    entity: str | int,
    *,
    relation: str | int | None = None,
    k: int = 10,
    data: Dataset | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Neighbors:
    """The `k` rows of a finished run of `link` that are nearest to that of `entity`, by cosine or the decoder's own distance.

    Rows are those that the decoder scores: of a run with an encoder, the encoded ones.

    With a `relation`, also the tails of (entity, relation, ?) and the heads of (?, relation, entity) that score best; known
    edges are not left out. Numbers are ids of this library; texts are names that `data` has, or else such numbers. Rows are read in
    pieces: memory does not grow with their number. Of equal scores the smaller id comes first.

    >>> import headrace as hr, tempfile
    >>> graph = hr.generate.community(nodes=100, edges=900, classes=2, features=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.train.link(graph, hr.train.LinkOptions(dim=4, epochs=1), out=folder + "/run")
    ...     found = hr.train.neighbors(folder + "/run", 7, k=3)
    >>> found.measure, len(found.nearest), found.tails
    ('cosine', 3, ())
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    with open_links(run) as trained, torch.no_grad():
        if data is not None:
            trained.check(data)
        names = None if data is None else Names.of_nodes(data)
        relation_names = None if data is None else Names.of_relations(data, trained.relations)
        node = _number(entity, names, trained.rows.num_rows, "entity")
        asked = None if relation is None else _number(relation, relation_names, trained.relations, "relation")
        row = _row(trained.rows, node)
        questions = _questions(trained.decoder, row, asked)
        best = {name: _Best(k) for name in questions}
        for begin, piece in scan(trained.rows):
            for name, score in questions.items():
                scores = score(piece)
                if name == "nearest" and begin <= node < begin + len(piece):
                    scores[node - begin] = -torch.inf
                best[name].add(begin, scores)
            if progress is not None:
                progress(begin + len(piece), trained.rows.num_rows)
        scored = {name: [(n, s) for n, s in one.pairs() if s > -torch.inf] for name, one in best.items()}
        wanted = [node, *(n for pairs in scored.values() for n, _ in pairs)]
        called = dict(zip(wanted, names.of(wanted) if names is not None else [None] * len(wanted), strict=True))
        lists = {name: tuple(Neighbor(n, called[n], s) for n, s in pairs) for name, pairs in scored.items()}
        return Neighbors(
            node,
            called[node],
            asked,
            None if asked is None or relation_names is None else relation_names.of([asked])[0],
            "minus distance" if isinstance(trained.decoder, DistanceDecoder) else "cosine",
            lists["nearest"],
            lists.get("tails", ()),
            lists.get("heads", ()),
        )


def _number(entity: str | int, names: Names | None, count: int, what: str) -> int:
    """The number of a node or relation, from its name or number."""
    if isinstance(entity, str) and names is not None:
        numbers = names.find(entity)
        if len(numbers) > 1:
            raise ValueError(f"{what} {entity!r} names {', '.join(map(str, numbers[:5]))}: give one of these numbers")
        if numbers:
            return numbers[0]
    if isinstance(entity, str) and not (entity.isascii() and entity.isdecimal()):
        if names is None:
            raise ValueError(f"{what} {entity!r} is no number, and there are no names: give a number from 0 to {count - 1}")
        alike = names.like(entity)
        more = f"did you mean {' or '.join(map(repr, alike))}?" if alike else f"give a name or a number from 0 to {count - 1}"
        raise ValueError(f"there is no {what} {entity!r}: {more}")
    if not 0 <= int(entity) < count:
        raise ValueError(f"{what} {entity} is not from 0 to {count - 1}")
    return int(entity)


def _row(rows: ReadRows, node: int) -> Tensor:  # -> [d]
    """One row. Where only some are resident it is read on the way: pieces before it are small next to the pass that follows."""
    for begin, piece in scan(rows):
        if begin <= node < begin + len(piece):
            return piece[node - begin].clone()
    raise IndexError(f"row {node} was not found among {rows.num_rows}")


def _questions(decoder: Decoder, row: Tensor, relation: int | None) -> dict[str, Callable[[Tensor], Tensor]]:
    """Functions that score a piece of rows, by the list that the scores are for.  # [n, d] -> [n]"""

    def scored(query: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda rows: decoder.score(query[None, None], rows[None])[0, 0]

    def cosine(rows: Tensor) -> Tensor:
        # A row of zeros points nowhere: it is near to nothing.
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1) * torch.linalg.vector_norm(row)
        return (rows @ row) / lengths.clamp_min(torch.finfo(torch.float32).tiny)

    questions = {"nearest": scored(row) if isinstance(decoder, DistanceDecoder) else cosine}
    if relation is not None:
        which = torch.tensor(relation)
        questions["tails"] = scored(decoder.query(row, which, side="tail"))
        questions["heads"] = scored(decoder.query(row, which, side="head"))
    return questions


class _Best:
    """The `k` highest scores so far, and the ids of their rows."""

    def __init__(self, k: int) -> None:
        self.k, self.ids, self.scores = k, torch.zeros(0, dtype=torch.int64), torch.zeros(0)

    def add(self, begin: int, scores: Tensor) -> None:  # [n]
        scores = torch.where(scores.isfinite(), scores, -torch.inf)  # NaN would come before all others
        ids = torch.cat([self.ids, torch.arange(begin, begin + len(scores))])
        order = torch.cat([self.scores, scores]).argsort(descending=True, stable=True)[: self.k]
        self.ids, self.scores = ids[order], torch.cat([self.scores, scores])[order]

    def pairs(self) -> list[tuple[int, float]]:
        return list(zip(self.ids.tolist(), self.scores.tolist(), strict=True))
