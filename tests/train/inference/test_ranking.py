"""Ranks against counting by hand, ties included."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import _native
from headrace.sample import KnownEdges
from headrace.store import TrainedArray
from headrace.train.inference import ranking
from headrace.train.inference.ranking import rank


def brute_ranks(decoder, table, triples, known, *, loops=True):
    """Ranks of tails, then of heads, one candidate after the other."""
    decoder = copy.deepcopy(decoder).requires_grad_(False)
    true, ranks = {tuple(t) for t in known}, []
    for side in ("tail", "head"):
        for h, r, t in triples:
            target = t if side == "tail" else h
            relation = torch.tensor([r])
            own = table[h if side == "tail" else t][None]
            query = decoder.query(own, relation, side=side)
            scores = [round(float(decoder.compare(query, row[None])), 4) for row in table]
            asked = {target} if loops else {h, t}
            others = [n for n in range(len(table)) if n not in asked and ((h, r, n) if side == "tail" else (n, r, t)) not in true]
            above = sum(scores[n] > scores[target] for n in others)
            level = sum(scores[n] == scores[target] for n in others)
            ranks.append(1 + above + level / 2)
    return torch.tensor(ranks, dtype=torch.float64)


class Streamed:
    """Rows of which none can be gathered, as of a table on disk."""

    def __init__(self, table, step):
        self.table, self.step = table, step
        self.num_rows, self.width, self.nbytes, self.disk = *table.shape, table.nbytes, self

    def gather(self, ids):
        raise IndexError("not resident")

    def add_(self, ids, delta_rows, delta_state):
        raise NotImplementedError

    def scan(self, *, rows):  # of which a piece never has more
        for begin in range(0, len(self.table), self.step):
            yield begin, self.table[begin : begin + self.step]


def small(seed=0, nodes=9, dim=4):
    """Rows of small whole numbers: many scores are equal."""
    torch.manual_seed(seed)
    table = torch.randint(-1, 2, (nodes, dim)).float()
    triples = torch.stack([torch.randint(nodes, (12,)), torch.randint(2, (12,)), torch.randint(nodes, (12,))], 1)
    return table, triples


@pytest.mark.parametrize("kind", [hr.nn.DistMult, hr.nn.ComplEx, hr.nn.TransE, hr.nn.RotatE])
@pytest.mark.parametrize("reciprocal", [False, True])
def test_full_ranks_are_counted(kind, reciprocal, monkeypatch):
    table, triples = small()
    torch.manual_seed(2)
    decoder = kind(4, 2, reciprocal=reciprocal)
    with torch.no_grad():
        decoder.relation.copy_(torch.randint(-1, 2, decoder.relation.shape).float())
    known = KnownEdges(triples, num_nodes=9, num_relations=2)
    rows = TrainedArray(table, torch.zeros(9, 1))
    filtered = ranking.RankMetrics.of(brute_ranks(decoder, table, triples[:7].tolist(), triples.tolist()))
    raw = ranking.RankMetrics.of(brute_ranks(decoder, table, triples[:7].tolist(), []))
    found = rank(decoder, rows, triples[:7].int(), known=known)
    assert (found.kind, found.candidates, found.edges) == ("full", 9, 7)
    assert found.filtered == filtered
    assert found.raw == raw
    assert found.best.mrr >= found.raw.mrr
    monkeypatch.setattr(ranking, "_BLOCK", 3)
    for store in (rows, Streamed(table, 2), Streamed(table, 4)):
        assert rank(decoder, store, triples[:7], known=known, memory=200) == found


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_node_is_no_answer_to_a_question_about_itself(seed):
    table, triples = small(seed)
    triples[:, 1] = 0
    triples[0, 2] = triples[0, 0]  # but where it is the true one
    triples[5, ::2] = triples[1, 0]  # and a loop that is known is left out once
    known, decoder = KnownEdges(triples, num_nodes=9, num_relations=1), hr.nn.Dot(4)
    by_hand = [brute_ranks(decoder, table, triples[:5].tolist(), true, loops=False) for true in (triples.tolist(), [])]
    filtered, raw = map(ranking.RankMetrics.of, by_hand)
    rows = TrainedArray(table, torch.zeros(9, 1))
    for store in (rows, Streamed(table, 2)):
        ranked = rank(decoder, store, triples[:5], known=known, loops=False, memory=200)
        assert (ranked.filtered, ranked.raw) == (filtered, raw)
    sampled = rank(decoder, rows, triples[:5], known=known, loops=False, sampled=900, seed=seed)
    assert abs((sampled.raw.mean_rank - 1) / 900 - (raw.mean_rank - 1) / 9) < 0.03
    assert abs((sampled.filtered.mean_rank - 1) / 900 - (filtered.mean_rank - 1) / 9) < 0.03


def test_equal_scores_gain_nothing():
    rows = TrainedArray(torch.zeros(11, 4), torch.zeros(11, 1))
    found = rank(hr.nn.DistMult(4), rows, torch.tensor([[0, 0, 1]]))
    assert found.raw.mean_rank == 6.0
    assert found.filtered is None
    assert found.best is found.raw


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 12))
def test_sampling_every_node_many_times_agrees_with_full(seed, count):
    table, triples = small(seed)
    known = KnownEdges(triples, num_nodes=9, num_relations=2)
    rows, decoder = TrainedArray(table, torch.zeros(9, 1)), hr.nn.Dot(4, 2)
    full = rank(decoder, rows, triples[:count], known=known)
    sampled = rank(decoder, rows, triples[:count], known=known, sampled=60, seed=seed)
    assert sampled.kind == "sampled"
    assert sampled.candidates == 60
    # a candidate that is above in full ranking is drawn 60 / 9 times on average
    assert abs((sampled.raw.mean_rank - 1) / 60 - (full.raw.mean_rank - 1) / 9) < 0.12
    assert abs((sampled.filtered.mean_rank - 1) / 60 - (full.filtered.mean_rank - 1) / 9) < 0.12
    streamed = rank(decoder, Streamed(table, 4), triples[:count], known=known, sampled=60, seed=seed, memory=500)
    assert streamed == sampled


def test_results_say_what_they_are():
    table, triples = small()
    rows, known = TrainedArray(table, torch.zeros(9, 1)), KnownEdges(triples, num_nodes=9, num_relations=2)
    plain = rank(hr.nn.Dot(4, 2), rows, triples, known=known, sampled=5).plain()
    assert plain["ranking"] == "sampled"
    assert plain["measure"] == "filtered"
    assert plain["sampled_filtered"]["mrr"] == plain["mrr"]
    assert set(plain["sampled_raw"]) == {"mrr", "hits@1", "hits@3", "hits@10", "mean_rank", "candidates"}


def test_no_edges_and_wrong_ones():
    rows = TrainedArray(torch.zeros(3, 4), torch.zeros(3, 1))
    assert rank(hr.nn.Dot(4), rows, torch.zeros(0, 3, dtype=torch.int64)).raw.mrr == 0.0
    with pytest.raises(IndexError, match="0 to 2"):
        rank(hr.nn.Dot(4), rows, torch.tensor([[0, 0, 3]]))
    with pytest.raises(ValueError, match="at least 1"):
        rank(hr.nn.Dot(4), rows, torch.tensor([[0, 0, 1]]), sampled=0)


def plain_counts(scores, low, high):
    """How many scores are above and level with the bounds, in plain torch: what is NaN is above."""
    lost = scores.isnan() | low.isnan()[:, None]
    above = lost | (scores > high[:, None])
    return above.sum(1), (~above & (scores >= low[:, None])).sum(1)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 5), st.sampled_from([0, 1, 7, 33, 20_000]), st.integers(1, 3), st.integers(0, 99))
def test_scores_are_counted_as_torch_counts_them(rows, width, threads, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 4, (rows, width), generator=generator).float()
    for share, value in ((0.05, torch.nan), (0.05, torch.inf), (0.05, -torch.inf)):
        scores[torch.rand(rows, width, generator=generator) < share] = value
    low, high = (
        torch.randint(-3, 1, (rows,), generator=generator).float(),
        torch.randint(0, 3, (rows,), generator=generator).float(),
    )
    lost = torch.rand(rows, generator=generator) < 0.2
    low[lost], high[lost] = torch.nan, torch.nan
    above, level = torch.ones(rows, dtype=torch.int64), torch.full((rows,), 2)
    _native.count_scores(scores.numpy(), low.numpy(), high.numpy(), above.numpy(), level.numpy(), threads=threads)
    more, same = plain_counts(scores, low, high)
    assert torch.equal(above, 1 + more)
    assert torch.equal(level, 2 + same)


class Table(hr.nn.Decoder):
    """Scores are looked up: row h of `scores` for (h, 0, ?), column t for (?, 0, t). Rows are the nodes' own numbers."""

    def __init__(self, scores):
        super().__init__(1, 1)
        self.scores = scores

    def query(self, rows, relation, *, side="tail"):
        self.side = side
        number = rows[:, :1]
        return torch.cat([number, torch.full_like(number, side == "tail")], 1)

    def score(self, query, candidates):
        return torch.stack([self._one(query[0], row) for row in candidates[0]], 1)[None]

    def compare(self, query, answers):
        return torch.stack([self._one(one[None], row)[0] for one, row in zip(query, answers, strict=True)])

    def _one(self, query, row):
        own, other = query[:, 0].long(), int(row[0])
        return torch.where(query[:, 1] == 1, self.scores[own, other], self.scores[other, own])


def plain_ranks(scores, triples, known):
    """Ranks of tails, then of heads, of a table of scores: in plain Python, the worst where the answer's score is not finite."""
    true, ranks = {tuple(t) for t in known}, []
    for side in ("tail", "head"):
        for h, r, t in triples:
            row, target = (scores[h].tolist(), t) if side == "tail" else (scores[:, t].tolist(), h)
            others = [n for n in range(len(row)) if n != target and ((h, r, n) if side == "tail" else (n, r, t)) not in true]
            own = row[target]
            lost = [n for n in others if math.isnan(row[n]) or not math.isfinite(own)]
            rest = [row[n] for n in others if n not in lost]
            ranks.append(1 + len(lost) + sum(s > own for s in rest) + sum(s == own for s in rest) / 2)
    return torch.tensor(ranks, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # counted by the native module, and in torch as on a GPU
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_what_is_not_finite_has_the_worst_rank(dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-2, 3, (9, 9), generator=generator).to(dtype)
    for value in (torch.nan, torch.inf, -torch.inf, torch.finfo(dtype).max, -torch.finfo(dtype).max):
        scores[torch.rand(9, 9, generator=generator) < 0.08] = value
    ends = torch.randint(9, (12, 2), generator=generator)
    triples = torch.stack([ends[:, 0], torch.zeros(12, dtype=torch.int64), ends[:, 1]], 1)
    rows = TrainedArray(torch.arange(9.0)[:, None], torch.zeros(9, 1))
    known = KnownEdges(triples, num_nodes=9, num_relations=1)
    found = rank(Table(scores), rows, triples[:7], known=known)
    asked = triples[:7].tolist()
    assert found.raw == ranking.RankMetrics.of(plain_ranks(scores, asked, []))
    assert found.filtered == ranking.RankMetrics.of(plain_ranks(scores, asked, triples.tolist()))
    assert found.not_finite == 2 * sum(not math.isfinite(scores[h, t]) for h, _, t in asked)


def test_sampled_ranks_of_what_is_not_finite_are_the_worst():
    scores = torch.full((9, 9), torch.nan)
    rows = TrainedArray(torch.arange(9.0)[:, None], torch.zeros(9, 1))
    ranked = rank(Table(scores), rows, torch.tensor([[0, 0, 1]]), sampled=40)
    assert ranked.not_finite == 2
    assert ranked.raw.mean_rank > 25  # 41, less as often as the answers themselves were drawn


def test_counts_of_another_size_are_refused():
    scores, ends = torch.zeros(3, 4).numpy(), torch.zeros(3).numpy()
    with pytest.raises(ValueError, match="as many rows"):
        _native.count_scores(scores, ends, ends[:2], *torch.zeros(2, 3, dtype=torch.int64).numpy(), threads=1)
