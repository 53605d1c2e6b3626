"""Static rows: learnt from training alone, said in the log, and neither lost nor made twice by a run that was killed."""

import pytest
import torch

import headrace as hr
from headrace.train.events import static
from headrace.train.watching.watch import Watcher


def options(**more):
    base = {"epochs": 2, "hidden": 8, "neighbors": 4, "batch_size": 50, "threads": 1, "candidates": 3, "static": "learned"}
    return hr.train.TemporalOptions(**(base | {"static_epochs": 2, "checkpoint_seconds": 0.0} | more))


@pytest.fixture(scope="module")
def data():
    return hr.generate.events(nodes=60, events=800, new=0.05, seed=5)


class Notes(Watcher):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def weights(result):
    return {name: value.clone() for name, value in result.model.state_dict().items()}


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    place = tmp_path_factory.mktemp("whole") / "run"
    notes = Notes()
    result = hr.train.temporal(data, options(), out=place, watcher=notes)
    return result, place, notes.notes


def test_the_log_says_what_is_learnt_first_and_for_whom(whole, data):
    result, place, notes = whole
    stream = hr.EventStream.of(data)
    train = stream.splits().train
    seen = torch.cat([stream.src[:train], stream.dst[:train]]).unique().long()
    unseen = stream.num_nodes - len(seen)
    assert f"static rows of {len(seen)} nodes are learnt first, in 2 epochs of the training events" in notes
    assert any(note.startswith("static rows are learnt: loss") and f"{unseen} nodes that training" in note for note in notes)
    rows = result.model.static
    assert bool((rows[seen].abs().sum(1) > 0).all())
    rest = torch.ones(stream.num_nodes, dtype=torch.bool)
    rest[seen] = False
    assert not bool(rows[rest].any())
    assert len(hr.train.Run(place / "static").metrics("epoch")) == 2
    assert hr.train.Run(place).header["parameters"] > 0


def test_rows_are_learnt_from_training_events_alone(data, whole):
    stream = hr.EventStream.of(data)
    splits = stream.splits()
    dst = stream.dst.clone()
    dst[splits.train :] = dst[splits.train :].roll(7)
    other = hr.EventStream(stream.src, dst, stream.time, num_nodes=stream.num_nodes)
    assert torch.equal(hr.train.temporal(other, options(epochs=1)).model.static, whole[0].model.static)


class GoneError(Exception):
    """As a killed process: nothing more is written."""


class Goes(Watcher):
    """Ends the process when the main run begins, or at one of its steps."""

    def __init__(self, place):
        self.place = place

    def begin(self, header, **where):
        if self.place == "after the first pass":
            raise GoneError

    def step(self, event, clock):
        if self.place == "within training" and event.step == 14:
            raise GoneError


@pytest.mark.parametrize(
    ("place", "steps"), [("before", 24), ("within the first pass", 13), ("after the first pass", 0), ("within training", 0)]
)
def test_a_run_that_was_killed_and_resumed_has_the_same_bits(data, whole, tmp_path, monkeypatch, place, steps):
    def killed(self, event, clock):
        if place == "before" or (place == "within the first pass" and event.step == 12):
            raise GoneError

    with monkeypatch.context() as patch, pytest.raises(GoneError):
        patch.setattr(static._Kept, "step", killed)
        hr.train.temporal(data, options(), out=tmp_path / "run", watcher=Goes(place))
    made = []
    with monkeypatch.context() as patch:
        patch.setattr(static._Kept, "step", lambda self, event, clock: made.append(event.step))
        again = hr.train.temporal(data, options(), out=tmp_path / "run", resume=True)
    assert len(made) == steps
    wanted = weights(whole[0])
    assert weights(again).keys() == wanted.keys() > {"static"}
    assert all(torch.equal(value, wanted[name]) for name, value in weights(again).items())
    assert again.summary()["test"] == whole[0].summary()["test"]


def test_some_nodes_train_with_zeros_as_unseen_ones_are_tested(whole, data):
    model = whole[0].model
    nodes = (model.static.abs().sum(1) > 0).nonzero().flatten()
    assert model.drops == 0
    assert torch.equal(model.rows_of(nodes), model.static[nodes])  # not in evaluation
    model.train()
    model.drops = 0.5
    rows = model.rows_of(nodes.repeat(20))
    model.eval()
    model.drops = 0.0
    zeros = ~rows.any(1)
    assert 0.4 < float(zeros.double().mean()) < 0.6
    assert torch.equal(rows[~zeros], model.static[nodes.repeat(20)][~zeros])
    assert hr.train.temporal(data, options(epochs=1, static_dropout=0.3)).model.drops == 0.3
    with pytest.raises(ValueError, match=r"static_dropout must be at least 0 and below 1, not 1\.0"):
        options(static_dropout=1.0)


def test_features_are_a_row_for_every_node(data):
    stream = hr.EventStream.of(data)
    rows = torch.randn(stream.num_nodes, 5, generator=torch.Generator().manual_seed(0))
    given = hr.Dataset(data.graph, x=rows, extra=data.extra)
    result = hr.train.temporal(given, options(static="features", epochs=1))
    assert torch.equal(result.model.static, rows)
    assert "static" not in weights(result)  # the dataset has them
    assert result.model.drops == 0
    with pytest.raises(ValueError, match="static features adds the nodes' features, and the data has none"):
        hr.train.temporal(data, options(static="features"))
    with pytest.raises(ValueError, match="tgat has no memory, so nodes would be alike"):
        hr.train.temporal(data, options(static="none", model="tgat"))
    assert hr.train.temporal(data, options(model="tgat", epochs=1)).test["ap"] > 0
