"""Trainings on snapshot groups: every strategy, hoisted or not, overlapped or not, on 1, 2 and 3 ranks, is the same training."""

import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

import headrace as hr
import snapshot_training
from headrace.nn.neighbor_sum import neighbor_sum
from headrace.ranks import Alone
from headrace.train import Run, SnapshotOptions, Watcher
from headrace.train.fit import Setup
from headrace.train.snapshots import recipe
from headrace.train.snapshots.recipe import SnapshotRecipe
from headrace.train.snapshots.windows import Windows
from rank_jobs import Job

SCRIPT = Path(snapshot_training.__file__)
ONE_CASE = {model: [case for case in snapshot_training.CASES if case.startswith(model)] for model in ("tgcn", "gclstm")}


def weights(folder, case):
    return torch.load(Path(folder) / f"{case}.weights", weights_only=True)


TOGETHER = ("vertex", "snapshot")  # strategies that add a gradient up in another order


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Every case, trained by one process; those that are the same there once."""
    folder = tmp_path_factory.mktemp("alone")
    cases = [case for case in snapshot_training.CASES if case.split("-")[1] not in TOGETHER or "hoist-alone" in case]
    snapshot_training.main(folder, cases)
    return folder


def by_ranks(ranks, folder, cases):
    job = Job(SCRIPT, [folder, *cases], size=ranks, folder=folder)
    try:
        assert job.wait(240) == [0] * ranks, "\n".join(job.said(rank) for rank in range(ranks))
    finally:
        job.end()


def assert_close(some, others, tolerance):
    for name, values in some.items():
        torch.testing.assert_close(values, others[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("model", ["tgcn", "gclstm"])
def test_every_setting_on_one_rank_is_the_same_training(alone, model):
    first, *others = ONE_CASE[model]
    for case in others:
        if (alone / f"{case}.weights").exists():
            assert_close(weights(alone, first), weights(alone, case), 1e-5)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_give_the_bits_of_one(alone, tmp_path, ranks):
    cases = [
        "tgcn-balanced-hoist-alone",
        "gclstm-balanced-hoist-overlap",
        "gclstm-equal-plain-alone",
        "tgcn-sequential-hoist-alone",
    ]
    by_ranks(ranks, tmp_path, cases)
    for case in cases:
        assert_close(weights(alone, case), weights(tmp_path, case), 0.0)
        balance = Run(tmp_path / case).result()["balance"]
        assert balance["makespan"] >= balance["bound"] > 0
        steps = Run(tmp_path / case).metrics("epoch")[-1]["balance"]["steps"]
        assert [len(values) for values in steps.values()] == [3, 3, 3]  # makespan over bound, idle share and bytes of each step
        assert sum(steps["bytes"]) / 3 == pytest.approx(balance["bytes"], abs=0.1)
        assert min(steps["bytes"]) > 0


@pytest.mark.parametrize(
    "case",
    [
        "gclstm-vertex-hoist-overlap",
        pytest.param("gclstm-snapshot-hoist-alone", marks=pytest.mark.slow),
        pytest.param("gclstm-balanced-hoist-overlap", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_dies_ends_the_others_who_name_it(tmp_path, case):
    job = Job(SCRIPT, [tmp_path, f"{case}:3@1"], size=3, folder=tmp_path)
    try:
        job.processes[1].wait(120)
        assert job.processes[1].returncode == -signal.SIGKILL, job.said(1)
        statuses = job.wait(10)
        assert None not in statuses
        for rank in (0, 2):
            assert statuses[rank] != 0
            assert re.search(rf"rank 1 \(process {job.processes[1].pid} on .+\)", job.said(rank)), job.said(rank)
    finally:
        job.end()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_setting_on_several_ranks_gives_the_bits_of_one(alone, tmp_path, ranks):
    by_ranks(ranks, tmp_path, list(snapshot_training.CASES))
    for case in snapshot_training.CASES:
        model, strategy, *_ = case.split("-")
        expected = weights(alone, f"{model}-balanced-hoist-alone" if strategy in TOGETHER else case)
        assert_close(expected, weights(tmp_path, case), 1e-4 if strategy in TOGETHER else 0.0)


@pytest.mark.parametrize("model", ["tgcn", "gclstm"])
@pytest.mark.parametrize("hoist", [False, True])
def test_a_step_has_the_loss_and_gradients_of_plain_torch(model, hoist):
    data = snapshot_training.sequence()
    options = SnapshotOptions(**{**snapshot_training.SHAPE, "model": model, "hoist": hoist, "epochs": 1})
    torch.manual_seed(options.seed)
    windows = Windows.of(data, options)
    again = _recipe(windows, options)
    groups = [group for piece in again._order(0)[: options.batches_per_step] for group in piece.groups]
    total = 0
    for group in groups:
        state = again.model.cell.start(data.num_nodes, windows.snapshots.x[0])
        for at in group.times:
            ids, x = data.nodes[at], windows.snapshots.x[at]
            new = again.model.cell(x, data.own_graph(at), tuple(part[ids] for part in state))
            state = tuple(old.index_copy(0, ids, part) for old, part in zip(state, new, strict=True))
        forecast = again.model(again.model.cell.rows(state), windows.history([group])[0])
        values, counts = (part[0] for part in windows.targets([group]))
        total = total + ((forecast - values).square() * counts).sum() / counts.sum() / len(groups)
    expected = torch.autograd.grad(total, list(again.model.parameters()))
    got = torch.autograd.grad(again.loss_of(groups), list(again.model.parameters()))
    torch.testing.assert_close(again.loss_of(groups), total, rtol=1e-5, atol=1e-6)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def _recipe(windows, options):
    return SnapshotRecipe(windows, Setup(options, None, None, Alone(), options.batches_per_step, Watcher(), ExitStack()))


def test_stopped_and_resumed_is_the_same_training(tmp_path):
    case = "gclstm-balanced-hoist-overlap"
    snapshot_training.main(tmp_path / "whole", [case], epochs=3)
    snapshot_training.main(tmp_path / "parts", [case], epochs=1)
    snapshot_training.main(tmp_path / "parts", [case], epochs=3, resume=True)
    assert_close(weights(tmp_path / "whole", case), weights(tmp_path / "parts", case), 0.0)
    assert Run(tmp_path / "parts" / case).load_checkpoint()["recipe"]["costs"]["measured"] > 0


def test_a_run_goes_on_with_another_exact_strategy_and_no_other(tmp_path):
    case = "tgcn-balanced-hoist-alone"
    snapshot_training.main(tmp_path / "whole", [case], epochs=2)
    snapshot_training.main(tmp_path / "parts", [case], epochs=1)
    with pytest.raises(ValueError, match="was begun with strategy balanced, not vertex"):
        snapshot_training.main(tmp_path / "parts", [case], epochs=2, resume=True, strategy="vertex")
    snapshot_training.main(tmp_path / "parts", [case], epochs=2, resume=True, strategy="equal")
    assert_close(weights(tmp_path / "whole", case), weights(tmp_path / "parts", case), 0.0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"window": 30}, "take 31 snapshots, and there are 24"),
        ({"window": 8, "history": "part"}, "too few for window 8"),
        ({"val": 0.5, "test": 0.5}, "leave nothing to train on"),
        ({"accumulate": 7}, "set groups, not accumulate"),
        ({"overlap": True, "dropout": 0.5}, "leave out one"),
    ],
)
def test_bad_options_are_named(change, says):
    with pytest.raises(ValueError, match=says):
        hr.train.snapshot(snapshot_training.sequence(), SnapshotOptions(**{**snapshot_training.SHAPE, **change}))


class Misdeclared(hr.nn.TGCN):
    """Declares a sum of features, and sums the state too."""

    def step(self, ahead, where, state):
        return super().step(ahead, where, (neighbor_sum("gcn", state[0], where),))


@pytest.mark.parametrize("hoist", [True, False])
def test_a_sum_that_is_declared_wrongly_is_found_before_the_first_step(monkeypatch, tmp_path, hoist):
    monkeypatch.setattr(recipe, "make_cell", lambda options, width: Misdeclared(width, options.hidden))
    options = SnapshotOptions(**{**snapshot_training.SHAPE, "hoist": hoist})
    with pytest.raises(ValueError, match=r"Misdeclared declares 0 sums that read state, and makes 1 .*: mend its operators"):
        hr.train.snapshot(snapshot_training.sequence(), options, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_targets_must_be_there():
    with pytest.raises(ValueError, match="no targets"):
        hr.train.snapshot(hr.Snapshots([([0], [1])] * 30, 2, x=torch.ones(30, 2, 1)))
