"""Streams that are not as they should be: refused by name, or trained with a result that says what was there."""

import re

import pytest
import torch
from plain_tgn import plain_losses
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.train.events.event import _tgn
from headrace.train.events.forward import Forward
from headrace.train.events.recipe import TemporalRecipe
from headrace.train.loop import Trainer
from headrace.train.watching.watch import Watcher

DRAW = torch.Generator().manual_seed(0)
EVENTS = 300
SRC, DST = (torch.randint(0, 20, (EVENTS,), generator=DRAW) for _ in range(2))
TIME = torch.arange(EVENTS)


def options(**more):
    base = {"epochs": 1, "hidden": 8, "neighbors": 3, "batch_size": 30, "threads": 1, "candidates": 2, "dropout": 0.0}
    return hr.train.TemporalOptions(**(base | more))


class Losses(Watcher):
    def __init__(self):
        self.losses = []

    def step(self, event, clock):
        self.losses.append(event.loss)


def losses_of(stream, **more):
    watcher = Losses()
    result = hr.train.temporal(stream, options(**more), watcher=watcher)
    return watcher.losses, result.summary()["test"]


@pytest.mark.parametrize(
    ("stream", "more", "said"),
    [
        (
            lambda: hr.EventStream(SRC + 2**40, DST, TIME),
            {},
            "training on 1,099,511,627,796 nodes (the largest id is 1099511627795)",
        ),
        (lambda: hr.EventStream(SRC, DST, TIME * 0), {}, "the val split has no events: all events have one time"),
        (
            lambda: hr.EventStream(SRC, DST, (TIME > 100).long()),
            {},
            "the val split has no events (train has 300, val has 0, test has 0): choose",
        ),
        (lambda: hr.EventStream(SRC, DST, TIME, val_time=10, test_time=1000), {}, "the test split has no events"),
        (lambda: hr.EventStream(SRC, DST, TIME, val_time=-5, test_time=10), {}, "the train split has no events"),
        (lambda: hr.EventStream([], [], []), {}, "the stream has no events"),
        (lambda: hr.EventStream(SRC, DST * 0, TIME), {}, "all events have one destination: there are no others to draw"),
        (
            lambda: hr.EventStream(SRC, DST, TIME),
            {"parallel": "1x8x1"},
            "j is 8, above the 7 batches that there are to take in turn",
        ),
        (lambda: hr.EventStream(SRC, DST, TIME), {"parallel": "1x1x8"}, "k is 8, above the 7 batches at which copies"),
        (lambda: hr.EventStream(SRC, DST, TIME), {"hidden": 9}, "hidden must be a multiple of heads, not 9 with 2 heads"),
    ],
)
def test_what_cannot_be_trained_is_refused_and_leaves_no_run(stream, more, said, tmp_path):
    with pytest.raises(ValueError, match=re.escape(said)):
        hr.train.temporal(stream(), options(**more), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_features_that_are_no_numbers_end_the_training_by_name():
    stream = hr.EventStream(SRC, DST, TIME, torch.full((EVENTS, 2), float("nan")))
    with pytest.raises(FloatingPointError, match="the loss is nan at epoch 0, batch 1: look for huge features"):
        hr.train.temporal(stream, options())


def test_self_loops_are_trained_as_the_plain_loop_does():
    """As in Enron, where an eighth of the events are somebody's mail to himself."""
    loops = TIME % 5 == 0
    stream = hr.EventStream(torch.where(loops, DST, SRC), DST, TIME // 3)
    assert int((stream.src == stream.dst).sum()) > 60
    chosen = options(optimizer="sgd", lr=1e-3)
    torch.manual_seed(0)
    watcher = Losses()
    recipe = TemporalRecipe(stream, stream.splits(), Forward(_tgn(chosen, stream, 0), None), chosen, evaluates=False)
    Trainer(recipe, chosen, None, watcher).epoch()
    recipe.memories[0].settle()
    recipe.close()
    torch.manual_seed(0)
    drawn = hr.sample.EventNegatives(stream, amount=1, seed=chosen.seed)
    how = {"batch_size": 30, "neighbors": 3, "tgn": _tgn(chosen, stream, 0), "negatives": drawn, "rate": chosen.lr}
    plain, rows = plain_losses(stream, stream.splits().train, **how, steps=100)
    torch.testing.assert_close(torch.tensor(watcher.losses), torch.tensor(plain), rtol=0, atol=1e-5)
    torch.testing.assert_close(recipe.memories[0].rows, rows, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shift", [2**60, -(2**60), 1_500_000_000_000_000_000])
def test_whole_times_are_subtracted_before_they_are_cast(shift):
    assert losses_of(hr.EventStream(SRC, DST, TIME + shift)) == losses_of(hr.EventStream(SRC, DST, TIME))


def test_fractions_of_a_second_since_1970_are_kept():
    time = TIME.double() / 4
    assert losses_of(hr.EventStream(SRC, DST, time + 2**31)) == losses_of(hr.EventStream(SRC, DST, time))


@pytest.mark.parametrize("cut", ["size", "ties"])
def test_batches_of_one_time_are_trained_and_equal_times_are_in_one_split(cut):
    stream = hr.EventStream(SRC, DST, TIME // 30)
    losses, test = losses_of(stream, cut=cut)
    assert len(losses) == 7
    assert test["protocol"]["events"] % 30 == 0


def test_a_stream_of_four_events_has_a_result():
    result = hr.train.temporal(hr.EventStream([0, 0, 1, 1], [2, 3, 2, 3], [1, 2, 3, 4]), options())
    assert result.test["protocol"]["events"] == 1
    assert result.test["inductive_events"] == 1


def test_a_file_that_is_not_in_order_of_time_is_imported_and_trained(tmp_path):
    order = torch.randperm(EVENTS, generator=torch.Generator().manual_seed(1))
    lines = [f"u{SRC[at]},i{DST[at]},{TIME[at]}" for at in order]
    (tmp_path / "events.csv").write_text("who,what,when\n" + "\n".join(lines) + "\n")
    with pytest.raises(
        ValueError, match=r"time\[\d+\] is \d+, before time\[\d+\] = \d+: events must be in order of time; sort them"
    ):
        hr.EventStream(SRC[order], DST[order], TIME[order])
    done = CliRunner().invoke(app, ["import", str(tmp_path / "events.csv"), str(tmp_path / "data"), "--time-column", "when"])
    assert done.exit_code == 0, done.output
    stream = hr.EventStream.of(hr.open(tmp_path / "data"))
    assert stream.time.tolist() == TIME.tolist()
    quick = ["--hidden", "8", "--epochs", "1", "--batch-size", "30", "--threads", "1", "--candidates", "2"]
    done = CliRunner().invoke(app, ["train", "temporal", str(tmp_path / "data"), *quick, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.replace("│", " ").split())
    assert "test ap" in shown
    assert "edgebank" in shown
    assert "recency" in shown
