"""What the evaluator measures: of whom, against whom, and what stands beside it."""

import itertools
import json

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.temporal.heuristics import Recency, tie_ranks
from headrace.train.events import evaluate
from headrace.train.events.candidates import EveryDestination
from headrace.train.events.evaluate import Evaluator
from headrace.train.events.event import _tgn
from headrace.train.events.forward import Forward
from headrace.train.events.heads import make_head
from headrace.train.inference.ranking import RankMetrics
from headrace.train.measure import Spread, auc, average_precision


def options(**more):
    base = {"epochs": 1, "hidden": 16, "neighbors": 4, "batch_size": 40, "dropout": 0.0, "threads": 1, "candidates": 3}
    return hr.train.TemporalOptions(**(base | more))


@pytest.fixture(scope="module")
def stream():
    """With 80 test events, of which some have a new end."""
    events = hr.EventStream.of(hr.generate.events(nodes=60, events=600, new=0.05, seed=5))
    events.val_time, events.test_time = (events.time[place].item() for place in (420, 519))
    return events


def evaluated(stream, chosen, name="test"):
    torch.manual_seed(0)
    splits = stream.splits()
    head = make_head(stream, chosen, splits.train)
    model = Forward(_tgn(chosen, stream, 0, classes=head.classes), None)
    evaluator = Evaluator(stream, splits, chosen, [chosen.neighbors], head)
    return evaluator, model, evaluator.split(model, name, lambda done, total: None)


def plain_scores(stream, model, chosen, candidates):
    """Logits of the test events and of `candidates(n)` of each, by the model one event at a time.  # -> [n, 1 + candidates]"""
    splits, size = stream.splits(), chosen.batch_size
    starts = [*range(0, splits.train, size), *range(splits.train, splits.val, size), *range(splits.val, splits.test, size)]
    head = make_head(stream, chosen, splits.train)
    evaluator = Evaluator(stream, splits, chosen, [chosen.neighbors], head)
    rows = torch.zeros(stream.num_nodes, model.tgn.memory_width + model.tgn.mail_width)
    scores = []
    with torch.no_grad():
        for index, begin in enumerate(starts):
            batch = evaluator.replay.make(index, 0, negatives=False)
            memory = model.update(rows[batch.nodes], batch, None)
            letters = model.letters(memory, batch, None)
            for event in range(begin, batch.end) if begin >= splits.val else ():
                asked = torch.cat([stream.src[event : event + 1], stream.dst[event : event + 1], candidates(event)]).long().numpy()
                bound = min(int(torch.searchsorted(stream.time, stream.time[event])), begin)
                bounds, times = np.full_like(asked, bound), stream.time[event].expand(len(asked)).numpy()
                (part,) = evaluator.replay._neighborhoods(asked, bounds, times, np.array([len(asked)]))
                states = rows[torch.from_numpy(part.nodes)]
                event_of, has, memory_time = evaluator.replay._mail(
                    part.nodes, np.full_like(part.nodes, begin), np.zeros_like(part.nodes)
                )
                mail_dt = torch.from_numpy(np.where(has, stream.time.numpy()[event_of] - memory_time, 0))
                width = model.tgn.memory_width
                updated = model.tgn.update(states[:, :width], states[:, width:], mail_dt, has_mail=torch.from_numpy(has))
                z = model.tgn.embed(updated, part.blocks, torch.from_numpy(part.dt))
                scores.append(model.tgn.score(z[:1].expand(len(asked) - 1, -1), z[1:]))
            rows[batch.nodes[batch.written]] = letters
    return torch.stack(scores).double()


def test_among_all_destinations_ranks_are_those_of_one_event_at_a_time(stream, monkeypatch):
    chosen = options(candidates=0)
    _, model, figures = evaluated(stream, chosen)
    destinations = torch.unique(stream.dst)
    scores = plain_scores(stream, model, chosen, lambda event: destinations[destinations != stream.dst[event]])
    ranks = 1 + (scores[:, 1:] > scores[:, :1]).double().sum(1) + 0.5 * (scores[:, 1:] == scores[:, :1]).double().sum(1)
    wanted = RankMetrics.of(ranks).plain()
    assert {name: figures[name] for name in wanted} == pytest.approx(wanted, abs=1e-3)  # ties are up to rounding
    assert figures["protocol"]["candidates"] == "all"
    monkeypatch.setattr(evaluate, "_ROOTS", 24)  # in pieces of a few events
    evaluator, _, pieces = evaluated(stream, chosen)
    assert evaluator.pieces > 5
    assert {name: pieces[name] for name in wanted} == pytest.approx({name: figures[name] for name in wanted}, abs=1e-3)
    assert json.dumps(pieces["heuristic"]["recency"]["mrr"]) == json.dumps(figures["heuristic"]["recency"]["mrr"])


@pytest.mark.parametrize("in_batch", ["hidden", "visible"])
def test_a_batch_in_pieces_leaves_the_memory_of_the_whole(stream, monkeypatch, in_batch):
    chosen = options(candidates=8, in_batch=in_batch)
    whole = evaluated(stream, chosen)[2]
    monkeypatch.setattr(evaluate, "_ROOTS", 90)
    evaluator, _, pieces = evaluated(stream, chosen)
    assert evaluator.pieces > 3
    for name in ("ap", "mrr"):  # other candidates are drawn, of the same kind
        assert pieces[name] == pytest.approx(whole[name], abs=0.1)


def test_ap_and_auc_are_global_and_inductive_figures_of_events_with_a_new_end(stream):
    chosen = options(candidates=1)
    evaluator, model, figures = evaluated(stream, chosen)
    begin, end = stream.splits().val, stream.splits().test
    drawn = []
    for index in range(evaluator.first["test"], evaluator.end["test"]):
        first, last = evaluator.cuts[index : index + 2].tolist()
        drawn.append(evaluator.head.candidates.sample(first, last, first, epoch=2**31, batch=index))
    drawn = torch.cat(drawn)
    scores = plain_scores(stream, model, chosen, lambda event: drawn[event - begin].int())
    true = torch.arange(2 * len(scores)) < len(scores)
    assert figures["ap"] == pytest.approx(average_precision(scores.T.flatten(), true), abs=1e-3)
    assert figures["auc"] == pytest.approx(auc(scores.T.flatten(), true), abs=1e-3)
    train = stream.splits().train
    known = set(stream.src[:train].tolist()) | set(stream.dst[:train].tolist())
    unseen = torch.tensor(
        [not {int(s), int(d)} <= known for s, d in zip(stream.src[begin:end], stream.dst[begin:end], strict=True)]
    )
    assert 0 < int(unseen.sum()) == figures["inductive_events"] < len(unseen)
    some = scores[unseen]
    assert figures["inductive"]["ap"] == pytest.approx(
        average_precision(some.T.flatten(), torch.arange(2 * len(some)) < len(some)), abs=1e-3
    )


def test_every_destination_but_the_true_one_is_ranked_once(stream):
    drawn = hr.sample.EventNegatives(stream, amount=1)
    candidates = EveryDestination(stream, drawn).sample(100, 130)
    for event, row in enumerate(candidates, 100):
        wanted = sorted(set(stream.dst.tolist()) - {int(stream.dst[event])})
        assert row[1:].tolist() == wanted
    assert torch.equal(candidates[:, :1], drawn.sample(100, 130))


def test_ties_count_half_and_scores_that_are_no_numbers_are_worst():
    scores = torch.tensor(
        [[1.0, 1.0, 2.0, 0.0], [1.0, 1.0 + 1e-7, 0.5, 0.5], [float("nan"), 0.0, 0.0, 0.0], [0.0, float("nan"), -1, -1]]
    )
    assert tie_ranks(scores[:, 0], scores[:, 1:], slack=1e-5).tolist() == [2.5, 1.5, 4.0, 2.0]
    assert tie_ranks(scores[:2, 0].double(), scores[:2, 1:].double()).tolist() == [2.5, 2.0]


def test_heuristics_know_what_the_rule_of_visibility_shows(stream):
    for in_batch in ("hidden", "visible"):
        _, _, figures = evaluated(stream, options(candidates=0, in_batch=in_batch))
        begin = stream.splits().val
        met, ranks = [], []
        recency = Recency(stream)
        destinations = torch.unique(stream.dst).long()
        for event in range(begin, len(stream)):
            start = begin + (event - begin) // 40 * 40
            bound = int(torch.searchsorted(stream.time, stream.time[event]))
            bound = min(bound, start) if in_batch == "hidden" else bound
            src, dst = int(stream.src[event]), int(stream.dst[event])
            pairs = set(itertools.islice(zip(stream.src.tolist(), stream.dst.tolist(), strict=True), bound))
            met.append([(src, int(other)) in pairs for other in [dst, *destinations[destinations != dst]]])
            ask = torch.tensor([dst, *destinations[destinations != dst].tolist()])
            row = recency.scores(torch.full_like(ask, src), ask, torch.full_like(ask, bound))
            ranks.append(tie_ranks(row[:1], row[None, 1:]))
        met = torch.tensor(met).double()
        wanted = RankMetrics.of(tie_ranks(met[:, 0], met[:, 1:])).mrr
        assert figures["heuristic"]["edgebank"]["mrr"] == pytest.approx(wanted)
        assert figures["heuristic"]["recency"]["mrr"] == pytest.approx(RankMetrics.of(torch.cat(ranks)).mrr)
        assert set(figures["heuristic"]["recency"]["inductive"]) >= {"ap", "auc", "mrr"}


def test_a_result_has_each_figure_by_its_name_over_repeats(stream, tmp_path):
    result = hr.train.temporal(stream, options(repeats=2), out=tmp_path / "run")
    plain = json.loads(json.dumps(result.summary()))
    assert hr.train.Run(tmp_path / "run").result() == plain
    for figure in (*(plain["test"][name] for name in ("ap", "auc", "mrr")), plain["test"]["inductive"]["ap"]):
        assert set(figure) == {"mean", "std", "values"}
        assert len(figure["values"]) == 2
    assert isinstance(result.test["ap"], Spread)
    assert plain["events_per_second"] > 0
    kept = plain["test"]["protocol"].pop("information_kept")
    assert 0 < kept < 1
    assert plain["test"]["protocol"] == {
        "task": "link",
        "negatives": "uniform",
        "candidates": 3,
        "in_batch": "hidden",
        "batch_size": 40,
        "cut": "size",
        "events": len(stream) - stream.splits().val,
    }
    assert set(plain["test"]["heuristic"]) == {"edgebank", "recency"}


def test_without_unseen_nodes_the_result_says_so(tmp_path):
    ids = torch.arange(400) % 8
    stream = hr.EventStream(ids, 8 + (ids * 3 + torch.arange(400) // 8) % 4, torch.arange(400))
    result = hr.train.temporal(stream, options(), out=tmp_path / "run")
    assert result.test["inductive"] is None
    assert result.test["inductive_events"] == 0
    assert result.test["heuristic"]["recency"]["inductive"] is None
    assert result.summary()["test"]["inductive"] is None


def test_candidates_are_at_least_none():
    with pytest.raises(ValueError, match="candidates must be at least 0, not -1"):
        options(candidates=-1)
