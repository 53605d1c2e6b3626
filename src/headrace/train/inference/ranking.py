"""How good rows and a decoder are: the rank of true ends among candidates, for heads and tails alike.

Every edge asks two questions, (head, relation, ?) and (?, relation, tail). The rank of the true answer is one more than the
candidates that score higher, plus half of those that score the same: the mean over all orders of equals, so that a model that
scores everything alike gains nothing. Filtered ranks leave out other known answers. Where edges have no relations, the node that is
asked about is no candidate either: it is the most similar to itself, and would win most questions. A ranking among sampled
candidates is another, easier measure than one among all of them: results say which they are.

Scores that are not finite cannot be compared. An answer with such a score has the worst rank, and a candidate whose score is NaN is
above any answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from headrace import _native
from headrace.nn import Decoder
from headrace.sample import KnownEdges, SharedNegatives, known_among
from headrace.store import Partitioned

HITS = (1, 3, 10)
_BLOCK = 1 << 14  # edges whose questions see one pass over the candidates
_SAMPLED_BLOCK = 1 << 10  # edges that share their sampled candidates
_TIE = 1e-5  # scores that differ by less, relatively, are equal: a product of matrices rounds otherwise than one of rows


class ReadRows(Protocol):
    """Rows that can be looked at: trained ones, or what an encoder made of them."""

    @property
    def num_rows(self) -> int: ...

    @property
    def width(self) -> int: ...

    def gather(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Rows as float32, and their states.  # [k] -> [k, width], [k, state]"""
        ...

    @property
    def disk(self) -> Partitioned | None:
        """The store of partitions, if only some rows can be gathered at a time."""
        ...

    def scan(self, *, rows: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """All rows, front to back: the id of the first row of a piece, and the piece.  # int, [n, width]"""
        ...


@dataclass(frozen=True)
class RankMetrics:
    """Means over the questions of a ranking."""

    mrr: float
    mean_rank: float
    hits: dict[int, float]

    @classmethod
    def of(cls, ranks: Tensor) -> RankMetrics:  # [q]
        """From ranks, 1 the best; zeros where there are none."""
        if not len(ranks):
            return cls(0.0, 0.0, dict.fromkeys(HITS, 0.0))
        ranks = ranks.sort().values  # so that sums do not depend on how questions were dealt into blocks
        hits = {k: float((ranks <= k).double().mean()) for k in HITS}
        return cls(float((1 / ranks).mean()), float(ranks.mean()), hits)

    def plain(self) -> dict[str, float]:
        """The metrics as `--json` prints them."""
        return {"mrr": self.mrr, **{f"hits@{k}": value for k, value in self.hits.items()}, "mean_rank": self.mean_rank}


@dataclass(frozen=True)
class Ranking:
    """Ranks of some edges: among all nodes (`full`) or among so many `candidates` that were drawn (`sampled`)."""

    kind: Literal["full", "sampled"]
    candidates: int
    edges: int
    raw: RankMetrics
    filtered: RankMetrics | None
    not_finite: int = 0  # questions whose true answer has no finite score

    @property
    def best(self) -> RankMetrics:
        """The filtered metrics where edges are known, else the raw ones."""
        return self.filtered or self.raw

    def plain(self) -> dict[str, Any]:
        """As `--json` prints it: the filtered metrics, or the raw ones if no edges are known, and all metrics by name."""
        named: dict[str, Any] = {}
        if self.filtered is not None:
            named[f"{self.kind}_filtered"] = {**self.filtered.plain(), "candidates": self.candidates}
        named[f"{self.kind}_raw"] = {**self.raw.plain(), "candidates": self.candidates}
        measure = "filtered" if self.filtered is not None else "raw"
        facts = {"ranking": self.kind, "measure": measure, "candidates": self.candidates, "edges": self.edges}
        return {**self.best.plain(), **facts, **named}


def rank(
    decoder: Decoder,
    rows: ReadRows,
    triples: Tensor,
    *,
    known: KnownEdges | None = None,
    loops: bool = True,
    sampled: int | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    memory: int = 1 << 28,
    progress: Callable[[int, int], None] | None = None,
) -> Ranking:  # [t, 3]
    """Rank the ends of `triples` (head, relation, tail): among all rows, or among `sampled` of them.

    known: all edges that are true, to filter by.
    loops: whether a node may be the answer to a question about itself. If not, it is a candidate only where it is the true answer.
    memory: bytes of scores, and of rows, at a time. Rows are read front to back in pieces, by `rows.scan` if it has that, so a
        table on disk is never whole in memory; every 16384 edges (fewer where `memory` is little) take two passes over it.

    >>> import torch, headrace as hr
    >>> from headrace.train.inference.ranking import rank
    >>> rows = hr.store.TrainedArray(torch.eye(3), torch.zeros(3, 0))
    >>> rank(hr.nn.Dot(3), rows, torch.tensor([[0, 0, 0], [1, 0, 2]])).raw.mrr
    0.7
    """
    if triples.dim() != 2 or triples.shape[1] != 3:
        raise ValueError(f"triples must be rows of head, relation and tail, not of shape {tuple(triples.shape)}")
    if sampled is not None and sampled < 1:
        raise ValueError(f"sampled must be at least 1 candidate, not {sampled}")
    if len(triples) and (int(triples[:, ::2].min()) < 0 or int(triples[:, ::2].max()) >= rows.num_rows):
        raise IndexError(f"triples hold nodes that are not from 0 to {rows.num_rows - 1}")
    where = torch.device(device)
    known = None if known is None else known.to(where)
    size = min(_BLOCK, max(memory // (40 * max(rows.width, 1)), 64)) if sampled is None else _SAMPLED_BLOCK
    piece_rows = max(memory // (16 * max(rows.width, 1)), 1)
    draw = None if sampled is None else SharedNegatives(rows.num_rows, amount=sampled, seed=seed)
    raw: list[Tensor] = []
    filtered: list[Tensor] = []
    not_finite = 0
    with torch.no_grad():
        for number, begin in enumerate(range(0, len(triples), size)):
            part = triples[begin : begin + size].long()
            ids = part[:, ::2].flatten()
            drawn = None if draw is None else draw.sample([], [], batch=number)[0]
            wanted = torch.cat([ids, drawn]) if drawn is not None else ids
            unique, place = wanted.unique(return_inverse=True)
            used_rows = rows_of(rows, unique, where, limit=piece_rows)
            ends = used_rows[place[: len(ids)].to(where)].view(len(part), 2, -1)
            questions = _Questions(decoder, part.to(where), ends, known, loops=loops)
            if drawn is not None:
                questions.against_sample(drawn.to(where), used_rows[place[len(ids) :].to(where)], memory)
            else:
                for first, piece in scan(rows, limit=piece_rows):
                    questions.against(first, piece.to(where), memory)
                    if progress is not None:
                        progress(min(begin + len(part) * (first + len(piece)) // rows.num_rows, len(triples)), len(triples))
            raw.append(questions.ranks(filtered=False))
            filtered.append(questions.ranks(filtered=True))
            not_finite += int(questions.low.isnan().sum())
            if progress is not None:
                progress(begin + len(part), len(triples))
    empty = torch.zeros(0, dtype=torch.float64)
    return Ranking(
        "full" if sampled is None else "sampled",
        rows.num_rows if sampled is None else sampled,
        len(triples),
        RankMetrics.of(torch.cat([empty, *raw])),
        None if known is None else RankMetrics.of(torch.cat([empty, *filtered])),
        not_finite,
    )


def scan(rows: ReadRows, *, limit: int | None = None) -> Iterator[tuple[int, Tensor]]:
    """Pieces of a table, front to back, as (first id, rows): of 64 MiB, or of `limit` rows if that is less."""
    step = max((1 << 24) // max(rows.width, 1), 1)
    return rows.scan(rows=step if limit is None else min(step, limit))


def rows_of(rows: ReadRows, ids: Tensor, device: torch.device, *, limit: int | None = None) -> Tensor:  # [k] ascending -> [k, d]
    """Rows by id: gathered, or picked from one pass where only some are resident."""
    if rows.disk is None:
        return rows.gather(ids)[0].to(device)
    out = torch.empty(len(ids), rows.width, device=device)
    for begin, piece in scan(rows, limit=limit):
        first, last = torch.searchsorted(ids, torch.tensor([begin, begin + len(piece)])).tolist()
        out[first:last] = piece[(ids[first:last] - begin).to(piece.device)].to(device)
    return out


def _compared(scores: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Which scores are above an answer, and which are level with it. What cannot be compared is above."""
    above = ~(scores <= high)
    return above, ~above & (scores >= low)


class _Questions:
    """The questions of some edges, tails first, and how many candidates were above and level with the true answer so far."""

    def __init__(self, decoder: Decoder, triples: Tensor, ends: Tensor, known: KnownEdges | None, *, loops: bool) -> None:
        head, relation, tail = triples.unbind(1)
        self.decoder, self.known = decoder, known
        self.query = torch.cat([decoder.query(ends[:, 0], relation), decoder.query(ends[:, 1], relation, side="head")])
        self.target = torch.cat([tail, head])
        self.asked = {"tail": (head, relation), "head": (tail, relation)}
        self.left_out = [self.target]  # of each question, nodes that are no candidates
        if not loops:
            itself = torch.cat([head, tail])
            self.left_out.append(torch.where(itself == self.target, -1, itself))
        positive = decoder.compare(self.query, torch.cat([ends[:, 1], ends[:, 0]]))
        positive = torch.where(positive.isfinite(), positive, torch.nan)
        slack, most = _TIE * positive.abs(), torch.finfo(positive.dtype).max  # so that an infinite candidate is never level
        self.low, self.high = (positive - slack).clamp_min(-most), (positive + slack).clamp_max(most)
        self.above, self.level, self.known_above, self.known_level = (torch.zeros_like(self.target) for _ in range(4))
        self._answers: tuple[Tensor, Tensor] | None = None

    def against(self, begin: int, rows: Tensor, memory: int) -> None:  # [m, d]
        """Count candidates `begin` and on."""
        step = max(memory // (16 * max(len(self.query), 1)), 1)
        for first in range(0, len(rows), step):
            self._count_range(begin + first, rows[first : first + step])

    def _count_range(self, begin: int, rows: Tensor) -> None:
        scores, end = self._scored(rows), begin + len(rows)
        for nodes in self.left_out:
            inside = ((nodes >= begin) & (nodes < end)).nonzero().flatten()
            above, level = _compared(scores[inside, nodes[inside] - begin], self.low[inside], self.high[inside])
            self.above[inside] -= above.long()
            self.level[inside] -= level.long()
        if self.known is not None:
            question, node = self._sorted_answers()
            first, last = torch.searchsorted(node, torch.tensor([begin, end], device=node.device)).tolist()
            question, node = question[first:last], node[first:last]
            self._count_known(question, scores[question, node - begin])

    def against_sample(self, ids: Tensor, rows: Tensor, memory: int) -> None:  # [n], [n, d]
        """Count candidates `ids`, of which any may be drawn several times."""
        step = max(memory // (16 * max(len(self.query), 1)), 1)
        for first in range(0, len(ids), step):
            some = ids[first : first + step]
            scores = self._scored(rows[first : first + step])
            mine = torch.zeros_like(scores, dtype=torch.bool)
            for nodes in self.left_out:
                mine |= nodes[:, None] == some
            question, candidate = mine.nonzero(as_tuple=True)
            above, level = _compared(scores[question, candidate], self.low[question], self.high[question])
            self.above.index_add_(0, question, -above.long())
            self.level.index_add_(0, question, -level.long())
            if self.known is not None:
                masks = [
                    known_among(self.known, end[None], relation[None], some[None], side=side)[0]  # type: ignore[arg-type]
                    for side, (end, relation) in self.asked.items()
                ]
                question, candidate = (torch.cat(masks) & ~mine).nonzero(as_tuple=True)
                self._count_known(question, scores[question, candidate])

    def _scored(self, rows: Tensor) -> Tensor:  # [m, d] -> [q, m]
        scores = self.decoder.score(self.query[None], rows[None])[0]
        if scores.is_cpu and scores.dtype == torch.float32:
            scores = scores.contiguous()
            arrays = [x.numpy() for x in (scores, self.low, self.high, self.above, self.level)]
            _native.count_scores(*arrays, threads=torch.get_num_threads())
            return scores
        above = scores.shape[1] - (scores <= self.high[:, None]).sum(1)  # as `_compared`, in fewer passes
        self.above += above
        self.level += scores.shape[1] - (scores < self.low[:, None]).sum(1) - above
        return scores

    def _count_known(self, question: Tensor, scores: Tensor) -> None:
        above, level = _compared(scores, self.low[question], self.high[question])
        self.known_above.index_add_(0, question, above.long())
        self.known_level.index_add_(0, question, level.long())

    def _sorted_answers(self) -> tuple[Tensor, Tensor]:
        """Known answers but for those that are left out anyway: question and node, in the order of nodes."""
        if self._answers is None:
            assert self.known is not None
            answers = [self.known.answers(*asked, side=side) for side, asked in self.asked.items()]  # type: ignore[arg-type]
            question = torch.cat([answers[0][0], answers[1][0] + len(self.query) // 2])
            node = torch.cat([answers[0][1], answers[1][1]])
            other = torch.stack([node != nodes[question] for nodes in self.left_out]).all(dim=0)
            question, node = question[other], node[other]
            order = node.argsort(stable=True)
            self._answers = question[order], node[order]
        return self._answers

    def ranks(self, *, filtered: bool) -> Tensor:  # -> [q] float64
        above, level = (self.above - self.known_above, self.level - self.known_level) if filtered else (self.above, self.level)
        return (1 + above + level.double() / 2).cpu()
