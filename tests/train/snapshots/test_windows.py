"""Which windows train, validate and test; what is forecast of a sequence; and what is wrong is named."""

import pytest
import torch
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.train import Run, SnapshotOptions, Watcher
from headrace.train.snapshots.baselines import baselines
from headrace.train.snapshots.heads.classes import Classes
from headrace.train.snapshots.suited import suited_options
from headrace.train.snapshots.windows import Windows

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"window": 4, "hidden": 4, "epochs": 2, "groups": 8, "threads": 1}


class Notes(Watcher):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


def sequence(steps=40, nodes=6, **changes):
    draw = torch.Generator().manual_seed(1)
    y = torch.randn(steps, nodes, generator=draw).cumsum(0)
    graphs = [([0, 1, 2, 3, 4], [1, 2, 3, 4, 0])] * steps
    return hr.Snapshots(graphs, nodes, **{"x": y[:, :, None], "y": y, **changes})


def classes(steps=60, nodes=6):
    """A node's class is the one that its neighbor had before, so that who knows the graph knows it all."""
    draw = torch.Generator().manual_seed(2)
    y = torch.zeros(steps, nodes, dtype=torch.int64)
    y[0] = torch.randint(0, 3, (nodes,), generator=draw)
    for at in range(1, steps):
        y[at] = torch.where(
            torch.rand(nodes, generator=draw) < 0.9, y[at - 1].roll(1), torch.randint(0, 3, (nodes,), generator=draw)
        )
    graphs = [(list(range(nodes)), [(node + 1) % nodes for node in range(nodes)])] * steps
    return hr.Snapshots(graphs, nodes, x=torch.nn.functional.one_hot(y, 3).float(), y=y)


def spans(windows, split):
    groups = windows.groups[split]
    return groups[0].first, groups[0].first + groups[0].window, groups[-1].first + groups[-1].window + windows.horizon


@pytest.mark.parametrize("horizon", [1, 2])
def test_targets_of_a_split_lie_within_it_and_windows_may_reach_back(horizon):
    options = {"window": 4, "horizon": horizon, "val": 0.2, "test": 0.2}
    reaching = Windows.of(sequence(), SnapshotOptions(**options))
    assert [spans(reaching, split) for split in ("train", "val", "test")] == [(0, 4, 24), (20, 24, 32), (28, 32, 40)]
    within = Windows.of(sequence(), SnapshotOptions(**options, history="part"))
    assert [spans(within, split) for split in ("train", "val", "test")] == [(0, 4, 24), (24, 28, 32), (32, 36, 40)]


def test_a_training_never_reads_what_comes_after_its_part():
    """Features and targets after the training part change neither the groups' loss nor how values are scaled."""
    whole = sequence()
    y = whole.y.clone()
    y[24:] = 1e6
    other = sequence(x=y[:, :, None], y=y)
    one, two = (Windows.of(data, SnapshotOptions(window=4, val=0.2, test=0.2)) for data in (whole, other))
    assert (one.mean, one.deviation) == (two.mean, two.deviation)
    for group in one.groups["train"]:
        assert torch.equal(one.targets([group])[0], two.targets([group])[0])
        assert all(torch.equal(one.snapshots.x[at], two.snapshots.x[at]) for at in group.times)


def test_what_is_forecast_follows_from_the_data():
    options = SnapshotOptions(window=4)
    assert Windows.of(sequence(), options).predict == "values"
    assert Windows.of(classes(), options).predict == "classes"
    bare = hr.Snapshots([([0, 1], [1, 2])] * 40, 3)
    assert Windows.of(bare, options).predict == "links"
    assert Windows.of(sequence(), SnapshotOptions(window=4, predict="links")).predict == "links"


def test_classes_are_learnt_from_neighbors():
    result = hr.train.snapshot(classes(), SnapshotOptions(**{**SMALL, "epochs": 15, "hidden": 8, "lr": 0.03}), watcher=Watcher())
    assert sorted(result.baselines) == ["last class", "most frequent class"]
    assert float(result.scores["test_accuracy"]) > 0.75 > max(figures["accuracy"] for figures in result.baselines.values())


def test_the_loss_of_classes_is_the_plain_cross_entropy():
    data = classes()
    data.y[5, 2] = -1  # unknown
    options = SnapshotOptions(window=3, horizon=2, hidden=4)
    head = Classes(Windows.of(data, options), options)
    model = head.make_model(hr.nn.TGCN(3, 4))
    groups, rows = head.windows.groups["train"][1:3], torch.randn(2, 6, 4)
    losses = head.losses(model, rows, groups)
    for loss, group, own in zip(losses, groups, rows, strict=True):
        total, count = 0.0, 0
        for node in range(6):
            history = torch.nn.functional.one_hot(data.y[group.first : group.first + 3, node].clamp_min(0), 3).flatten().float()
            scores = model(own[node], history).view(2, 3).log_softmax(1)
            for step in range(2):
                true = int(data.y[group.first + 3 + step, node])
                total, count = (total, count) if true < 0 else (total - float(scores[step, true].detach()), count + 1)
        assert count == (11 if group.first <= 2 else 12)
        assert float(loss.detach()) == pytest.approx(total / count, rel=1e-5)
    parts = [head.losses(model, rows[:, own], groups, own) for own in (torch.arange(2), torch.arange(2, 6))]
    torch.testing.assert_close(sum(parts), losses)


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        (sequence(), {"predict": "classes"}, "classes must be integers, and y is torch.float32"),
        (sequence(y=None), {}, "no targets: give y, .* or predict links"),
        (hr.Snapshots([([0], [1])] * 40, 2), {"predict": "values"}, "no targets"),
        (hr.Snapshots([([0], [1])] * 40, 2), {"horizon": 2}, "horizon must be 1, not 2"),
        (
            sequence(mask=(torch.arange(40) < 32)[:, None].expand(40, 6)),
            {},
            r"targets of the test part are missing \(snapshots 32 to 39\)",
        ),
        (sequence(), {"window": 60}, "take 61 snapshots, and there are 40: shorten them"),
    ],
)
def test_what_cannot_be_forecast_is_named(data, options, says):
    with pytest.raises(ValueError, match=says):
        Windows.of(data, SnapshotOptions(**{"window": 4, **options}))


def test_a_unit_of_time_for_what_has_snapshots_already_is_refused():
    with pytest.raises(ValueError, match="every cuts a list of events into snapshots, and this data has its own: leave it out"):
        hr.train.snapshot(sequence(), {"every": 3.0})


def test_numbers_that_are_not_finite_are_named():
    data = sequence()
    y = data.y.clone()
    y[30, 2] = float("nan")
    with pytest.raises(ValueError, match="target is not finite at snapshot 30, node 2"):
        Windows.of(sequence(y=y, x=data.x), SnapshotOptions(window=4))
    with pytest.raises(ValueError, match=r"features are not finite at snapshot 30, row 2: .*missing='mask'"):
        Windows.of(sequence(y=data.y, x=y[:, :, None]), SnapshotOptions(window=4))


def test_what_is_missing_or_left_out_is_told(tmp_path):
    signal = sequence().y.clone()
    signal[7, 1] = float("nan")
    edges = torch.tensor([[0, 1, 2], [1, 2, 3]])  # nodes 4 and 5 have none
    data = hr.Dataset(hr.Graph.from_edges(*edges, 6), extra={"edge_index": edges, "signal": signal})
    watcher = Notes()
    snapshots = hr.Snapshots.of(data, missing="mask")
    hr.train.snapshot(snapshots, SnapshotOptions(**SMALL, keep=1e-5), out=tmp_path / "run", watcher=watcher)
    told = "\n".join(watcher.said)
    assert "2 nodes have no edge in any snapshot, the first is node 4" in told
    assert "1 targets are missing and do not count" in told
    assert "no sums kept: one takes more than the budget of 10 bytes" in told


def test_the_command_masks_what_is_missing_and_takes_integers_for_classes(tmp_path):
    signal, edges = sequence().y.clone(), torch.tensor([[0, 1, 2], [1, 2, 3]])
    signal[7, 1] = float("nan")
    hr.Dataset(hr.Graph.from_edges(*edges, 6), extra={"edge_index": edges, "signal": signal}).save(tmp_path / "gaps")
    quick = ["--window", "4", "--hidden", "4", "--epochs", "1", "--threads", "1"]
    asked = ["train", "snapshot", str(tmp_path / "gaps"), *quick, "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 2
    assert "the signal is NaN at snapshot 7, node 1 (1 in all): mend it, or pass missing='mask' (--missing mask)" in done.output
    done = CliRunner().invoke(app, [*asked, "--missing", "mask"])
    assert done.exit_code == 0, done.output
    assert "1 targets are missing and do not count" in done.output
    known = classes()
    extra = {"edge_index": edges, "x": torch.stack(known.x) if isinstance(known.x, list) else known.x, "y": known.y}
    snapshots = hr.Snapshots.of(hr.Dataset(hr.Graph.from_edges(*edges, 6), extra=extra))
    assert Windows.of(snapshots, SnapshotOptions(window=4)).predict == "classes"


def test_a_known_dataset_has_its_usual_options(data_root):
    assert (suited_options("los_loop", {}).window, suited_options("los_loop", {}).history) == (12, "part")
    assert suited_options("chickenpox_hungary", {"window": 7}).window == 7
    chickenpox = hr.Snapshots.of(hr.load("chickenpox_hungary", data_root))
    windows = Windows.of(chickenpox, suited_options("chickenpox_hungary", {"val": 0.0}))
    made = baselines(windows)
    assert len(windows.groups["test"]) == 104
    assert made["zero"]["mse"] == pytest.approx(1.047, abs=1e-3)
    assert made["linear"]["mse"] == pytest.approx(0.724, abs=2e-3)


def test_the_command_forecasts_a_known_dataset_and_tells_what_it_chose(data_root, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_DATA", str(data_root))
    place = tmp_path / "run"
    done = CliRunner().invoke(app, ["train", "snapshot", "england_covid", "--epochs", "1", "--out", str(place)])
    assert done.exit_code == 0, done.output
    assert "last value" in done.output
    assert Run(place).header["options"]["window"] == 8
    assert len(Run(place).metrics("end")[0]["test"]["forecast"]["snapshots"]) == 12
    assert "window 8: as england_covid is usually trained" in done.output
