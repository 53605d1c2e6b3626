"""Links of the next snapshot: counts, loss, ranks and baselines against plain loops, and whole trainings."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.nn import TGCN
from headrace.snapshots import Group
from headrace.train import Run, SnapshotOptions, Watcher
from headrace.train.snapshots.heads.activity import Activity
from headrace.train.snapshots.heads.counted import Counted, fitted
from headrace.train.snapshots.heads.links import LinkModel, Links
from headrace.train.snapshots.heads.pairs import Pairs
from headrace.train.snapshots.windows import Windows
from training_cases import StopAt, StoppedError

pytestmark = pytest.mark.usefixtures("one_thread")
SEQUENCES = st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6), min_size=1, max_size=6)


def sequence(edges):
    return hr.Snapshots([tuple(zip(*own, strict=True)) if own else ([], []) for own in edges], 5)


def bare(steps=24, nodes=30):
    """Edges that mostly come again, some of them turned round; the tenth snapshot has none."""
    draw = torch.Generator().manual_seed(3)
    graphs, src, dst = [], *torch.randint(0, nodes, (2, 20), generator=draw)
    for at in range(steps):
        new = torch.randint(0, nodes, (2, 20), generator=draw)
        stays = torch.rand(20, generator=draw) < 0.6
        src, dst = torch.where(stays, dst, new[0]), torch.where(stays, src, new[1])
        graphs.append(([], []) if at == 10 else (src, dst))
    return hr.Snapshots(graphs, nodes)


def head_of(snapshots, **options):
    chosen = SnapshotOptions(**{"window": 3, "hidden": 4, "negatives": 0, "threads": 1, **options})
    return Links(Windows.of(snapshots, chosen), chosen)


def dense(head, model, rows, group):
    """Scores of all pairs, a pair at a time."""
    last = group.first + group.window - 1
    scores = model.pair(rows) @ rows.t() + model.target(rows).t()
    if model.skip is None:
        return scores
    every = torch.arange(head.nodes)
    src, dst = torch.cartesian_prod(every, every).t()
    counts = torch.cat([head.activity.counts[last][dst], head.pairs.read(src, dst, last)], dim=1)
    return scores + (counts @ model.skip.weight).view(head.nodes, head.nodes)


@settings(max_examples=12, deadline=None)
@given(SEQUENCES)
def test_counts_are_those_of_a_plain_loop(edges):
    snapshots = sequence(edges)
    activity, pairs = Activity(snapshots), Pairs(snapshots)
    every = torch.arange(5)
    src, dst = torch.cartesian_prod(every, every).t()
    for at in range(len(edges)):
        halved = [[sum(0.5 ** (at - t) * edges[t].count((s, d)) for t in range(at + 1)) for d in range(5)] for s in range(5)]
        there = torch.tensor(halved, dtype=torch.float64)
        ever = torch.tensor([[sum(edges[t].count((s, d)) for t in range(at + 1)) for d in range(5)] for s in range(5)])
        torch.testing.assert_close(activity.both_halved[at], there.sum(0) + there.sum(1))
        torch.testing.assert_close(activity.ever_in[at], ever.sum(0).double())
        counts = pairs.read(src, dst, at).view(5, 5, 5).double()
        known = (ever > 0).double()
        expected = torch.stack([there.log1p(), known, there.t().log1p(), known.t(), torch.eye(5).double()], dim=2)
        torch.testing.assert_close(counts, expected, rtol=1e-6, atol=1e-6)
        place, other, around = pairs.around(every, at)
        filled = torch.zeros(5, 5, 5).index_put((place, other), around, accumulate=True).double()
        torch.testing.assert_close(filled, expected, rtol=1e-6, atol=1e-6)
        assert len(set(zip(place.tolist(), other.tolist(), strict=True))) == len(place)


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("negatives", [0, 7])
def test_the_loss_is_the_plain_cross_entropy(skip, negatives):
    head = head_of(bare(), skip=skip, negatives=negatives)
    model = head.make_model(TGCN(8, 4))
    torch.nn.init.normal_(model.pair.weight)
    torch.nn.init.normal_(model.target.weight)
    groups = [Group(0, 3), Group(7, 3), Group(9, 3)]  # the second is followed by a snapshot without edges
    rows = torch.randn(3, 30, 4, requires_grad=True)
    losses = head.losses(model, rows, groups)
    for loss, own, group in zip(losses, rows, groups, strict=True):
        src, dst = head.edges(group)
        if not len(src):
            assert float(loss.detach()) == 0
            continue
        scores, among, expected = dense(head, model, own, group), head.candidates(group), 0
        for s, d in zip(src.tolist(), dst.tolist(), strict=True):
            others = scores[s][[int(c) for c in among if int(c) != d]]
            # Draws stand for all nodes but the true one; of those that are the true one, nothing is left.
            more = math.log(29 / negatives) if negatives else 0.0
            expected = expected + torch.cat([scores[s, d][None], others + more]).logsumexp(0) - scores[s, d]
        torch.testing.assert_close(loss, expected / len(src), rtol=1e-5, atol=1e-5)
    weights = [rows, *(weight for name, weight in model.named_parameters() if not name.startswith("cell"))]
    got = torch.autograd.grad(losses.sum(), weights, retain_graph=True)
    assert all(bool(gradient.any()) for gradient in got)


def test_candidates_depend_on_seed_epoch_and_group_alone():
    head, same, other = head_of(bare(), negatives=9), head_of(bare(), negatives=9), head_of(bare(), negatives=9, seed=1)
    first = head.candidates(Group(4, 3))
    assert torch.equal(first, same.candidates(Group(4, 3)))
    assert not torch.equal(first, other.candidates(Group(4, 3)))
    assert not torch.equal(first, head.candidates(Group(5, 3)))
    head.epoch = 1
    assert not torch.equal(first, head.candidates(Group(4, 3)))
    assert int(first.min()) >= 0
    assert int(first.max()) < 30


def test_the_fitted_map_has_the_least_loss_of_all_pairs():
    head = head_of(bare())
    groups = head.windows.groups["train"]
    every = torch.arange(30)
    src, dst = torch.cartesian_prod(every, every).t()
    weight = head._first.clone().requires_grad_()
    total = 1e-4 * weight.square().sum()
    known = [group for group in groups if len(head.edges(group)[0])]
    for group in known:
        last, (sources, targets) = group.first + group.window - 1, head.edges(group)
        counts = torch.cat([head.activity.counts[last][dst], head.pairs.read(src, dst, last)], dim=1).double()
        scores = (counts @ weight).view(30, 30)[sources]
        total = total + torch.nn.functional.cross_entropy(scores, targets) / len(known)
    (gradient,) = torch.autograd.grad(total, weight)
    assert float(gradient.abs().max()) < 2e-3
    assert float(total.detach()) < math.log(30)


def test_ranks_are_among_all_nodes_and_ties_count_half():
    head = head_of(bare(), skip=False, history="all")
    model = head.make_model(TGCN(8, 4))
    torch.nn.init.zeros_(model.pair.weight)
    torch.nn.init.zeros_(model.target.weight)
    with torch.no_grad():
        alike = head.figures(model, "test", lambda groups: torch.randn(len(groups), 30, 4), lambda done, whole: None)
        assert alike["mean_rank"] == pytest.approx(15.5)  # the mean of 1 to 30
        torch.nn.init.normal_(model.pair.weight)
        rows = torch.randn(30, 4)
        made = head.figures(model, "test", lambda groups: rows[None], lambda done, whole: None)
    ranks = []
    for group in head.windows.groups["test"]:
        scores = dense(head, model, rows, group)
        ranks += [1 + int((scores[s] > scores[s, d]).sum()) for s, d in zip(*head.edges(group), strict=True)]
    assert made["edges"] == len(ranks) == sum(bare().num_edges[-5:])
    assert made["mrr"] == pytest.approx(sum(1 / rank for rank in ranks) / len(ranks))


def test_baselines_rank_by_counts():
    head = head_of(bare())
    made = head.baselines()
    ranks = []
    for group in head.windows.groups["test"]:
        scores = head.activity.both_halved[group.first + 2]
        ranks += [
            1 + int((scores > scores[d]).sum()) + (int((scores == scores[d]).sum()) - 1) / 2 for d in head.edges(group)[1].tolist()
        ]
    assert made["counts of both ends, halved"]["mrr"] == pytest.approx(sum(1 / rank for rank in ranks) / len(ranks))
    model = LinkModel(TGCN(8, 4), Counted(head._first))
    torch.nn.init.zeros_(model.pair.weight)
    with torch.no_grad():
        begun = head.figures(head.make_model(TGCN(8, 4)), "test", lambda groups: torch.randn(1, 30, 4), lambda done, whole: None)
    assert begun["mrr"] == pytest.approx(made["linear"]["mrr"])  # where the model begins
    assert made["linear"]["mrr"] > made["in-degree"]["mrr"]


def options(**changes):
    return SnapshotOptions(
        **{"window": 3, "hidden": 4, "epochs": 2, "groups": 4, "stack": 2, "negatives": 10, "threads": 1, "checkpoint_seconds": 0.0}
        | changes
    )


def test_a_training_beats_the_counts_it_begins_with_and_says_so(tmp_path):
    result = hr.train.snapshot(bare(steps=40), options(epochs=6, lr=0.02), out=tmp_path / "run", watcher=Watcher())
    assert sorted(result.baselines) == ["counts of both ends, halved", "in-degree", "linear"]
    assert result.scores["test_mrr"] > result.baselines["in-degree"]["mrr"]
    summary = Run(tmp_path / "run").result()
    assert summary["test"]["mrr"]["mean"] == pytest.approx(float(result.scores["test_mrr"]))
    assert Run(tmp_path / "run").header["measures"][0] == {"name": "mrr", "better": "higher", "format": ".4f"}


@pytest.mark.parametrize("stack", [1, 3])
def test_how_groups_are_stacked_changes_no_weights(stack):
    results = [hr.train.snapshot(bare(), options(stack=n), watcher=Watcher()) for n in (2, stack)]
    for (name, some), other in zip(results[0].model.named_parameters(), results[1].model.parameters(), strict=True):
        torch.testing.assert_close(some, other, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("step", [3, 6])
def test_a_training_of_links_that_dies_ends_as_one_that_did_not(tmp_path, step):
    hr.train.snapshot(bare(), options(), out=tmp_path / "whole", watcher=Watcher())
    with pytest.raises(StoppedError):
        hr.train.snapshot(bare(), options(), out=tmp_path / "cut", watcher=StopAt("step", step))
    again = hr.train.snapshot(bare(), options(), out=tmp_path / "cut", resume=True, watcher=Watcher())
    whole = Run(tmp_path / "whole").load_checkpoint()["model"]
    assert all(torch.equal(values, Run(tmp_path / "cut").load_checkpoint()["model"][name]) for name, values in whole.items())
    assert again.scores["test_mrr"] == Run(tmp_path / "whole").result()["test"]["mrr"]["mean"]


def test_rows_that_are_split_are_refused():
    head = head_of(bare())
    with pytest.raises(ValueError, match="both its ends"):
        head.losses(head.make_model(TGCN(8, 4)), torch.randn(1, 5, 4), [Group(0, 3)], torch.arange(5))


def test_no_edges_at_all_are_no_reason_to_stop():
    empty = hr.Snapshots([([], [])] * 24, 6)
    result = hr.train.snapshot(empty, options(epochs=1), watcher=Watcher())
    assert result.scores["test_mrr"] == 0
    assert fitted(Activity(empty), Pairs(empty), []).tolist() == [0.0] * 13


@pytest.mark.slow
def test_bitcoin_otc_has_the_baselines_of_the_protocol(data_root):
    """138 steps, of which the last 28 are for testing."""
    snapshots = hr.Snapshots.of(hr.load("bitcoin_otc", data_root), every=1.2e6)
    made = head_of(snapshots, window=4).baselines()
    assert made["in-degree"]["edges"] == 985
    assert made["in-degree"]["mrr"] == pytest.approx(0.0470, abs=1e-4)
    assert made["counts of both ends, halved"]["mrr"] == pytest.approx(0.0845, abs=1e-4)
    assert made["linear"]["mrr"] > 0.13
