"""Lanes of one batch compute what trainers one after the other compute, and padding changes nothing."""

import dataclasses
import signal

import pytest
import torch

import headrace as hr
from headrace.sample import EventNegatives
from headrace.temporal import Asked, EventBatches, Room, cut_events
from headrace.train import captured as capturing
from headrace.train.events.event import _tgn, recipe_of
from headrace.train.events.forward import Forward
from headrace.train.loop import Trainer
from headrace.train.watching.watch import Watcher

SHAPES = ["1x1x1", "2x1x1", "1x2x1", "1x1x2", "2x1x2", "1x3x2"]


class Losses(Watcher):
    def __init__(self):
        self.losses = []
        self.events = []

    def step(self, event, seconds):
        self.losses.append(event.loss)
        self.events.append(event.seeds)


def options(**more):
    base = {"epochs": 1, "hidden": 8, "neighbors": 4, "batch_size": 20, "dropout": 0.0, "optimizer": "sgd", "lr": 0.02}
    return hr.train.TemporalOptions(**(base | {"threads": 1, "candidates": 3} | more))


@pytest.fixture(scope="module")
def stream():
    stream = hr.EventStream.of(hr.generate.events(nodes=60, events=1500, new=0.02, seed=5))
    rows = torch.randn(len(stream), 3, generator=torch.Generator().manual_seed(0))
    label = (torch.arange(len(stream)) % 3 == 0).long()
    # Short times: the gradient of a frequency has the time as a factor, and steps on long ones amplify what was rounded.
    return hr.EventStream(stream.src, stream.dst, stream.time / 1000, rows, num_nodes=stream.num_nodes, label=label)


def recipe_for(stream, chosen, static=None):
    torch.manual_seed(0)
    tgn = _tgn(chosen, stream, 0 if static is None else static.shape[1], classes=2 if chosen.task == "edge_class" else 1)
    return recipe_of(stream, stream.splits(), Forward(tgn, static), chosen, evaluates=False)


def trained(stream, chosen, sweeps=1, static=None):
    chosen = chosen.resolved(1)
    recipe, watcher = recipe_for(stream, chosen, static), Losses()
    trainer = Trainer(recipe, chosen, None, watcher, accumulate=chosen.batches_per_step)
    for _ in range(sweeps):
        trainer.epoch()
    recipe.copies.settle()
    recipe.close()
    return watcher, recipe


def by_iteration(watcher, trainers):
    """Means over the events of each iteration, of losses by trainer."""
    losses, events = (torch.tensor(v, dtype=torch.float64).view(-1, trainers) for v in (watcher.losses, watcher.events))
    return (losses * events).sum(1) / events.sum(1)


def assert_same(apart, together, trainers):
    expected = by_iteration(apart[0], trainers)
    torch.testing.assert_close(torch.tensor(together[0].losses, dtype=torch.float64), expected, rtol=0, atol=1e-5)
    for (name, a), b in zip(apart[1].model.state_dict().items(), together[1].model.state_dict().values(), strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-5, msg=name)
    assert apart[1].copies.rows.keys() == together[1].copies.rows.keys()
    for copy, rows in apart[1].copies.rows.items():
        torch.testing.assert_close(together[1].copies.rows[copy], rows, rtol=0, atol=1e-5)
        assert bool(rows.any())


@pytest.mark.parametrize("parallel", SHAPES)
def test_lanes_together_are_lanes_one_after_the_other(stream, parallel):
    runs = [trained(stream, options(parallel=parallel, lanes=lanes), sweeps=2) for lanes in ("apart", "together")]
    trainers = runs[0][1].schedule.trainers
    assert len(runs[1][0].losses) >= 60 // runs[1][1].schedule.i
    assert_same(*runs, trainers)
    for copy, memory in runs[0][1].memories.items():
        assert list(memory.log) == list(runs[1][1].memories[copy].log)


@pytest.mark.parametrize(
    "more",
    [
        {"model": "dyrep"},
        {"model": "jodie"},
        {"model": "tgat", "static": "features", "lr": 1e-4},
        {"negatives": 3, "loss": "softmax"},
        {"task": "edge_class"},
        {"cut": "ties", "in_batch": "visible"},
    ],
)
def test_so_are_those_of_every_model_and_task(stream, more):
    static = torch.randn(stream.num_nodes, 8, generator=torch.Generator().manual_seed(1)) if "static" in more else None
    runs = [trained(stream, options(parallel="2x2x2", lanes=lanes, **more), static=static) for lanes in ("apart", "together")]
    trainers = runs[0][1].schedule.trainers
    if more.get("model") == "tgat":
        assert not runs[1][1].copies.rows
    assert_same(*runs, trainers)


@pytest.mark.parametrize("parallel", ["1x1x1", "2x2x2"])
@pytest.mark.parametrize("model", ["tgn", "dyrep", "tgat"])
def test_a_batch_with_more_room_has_the_losses_gradients_and_memory(stream, parallel, model):
    static = torch.randn(stream.num_nodes, 8, generator=torch.Generator().manual_seed(1)) if model == "tgat" else None
    recipe = recipe_for(stream, options(parallel=parallel, lanes="together", model=model).resolved(1), static)
    batches = list(recipe.batches(0, 0))
    for number in (0, 1, 2, len(batches) - 1):
        batch = batches[number]
        recipe.copies.table.normal_(generator=torch.Generator().manual_seed(number)).mul_(0.1)
        before = recipe.copies.table.clone()
        room = batch.room()
        more = Room(room.fixed, tuple(n + 512 * (n > 0) for n in room.rows), tuple(n + 256 for n in room.edges))
        found = []
        for events in (batch.joined(), batch.padded(more, recipe.model)):
            if found:
                assert more.holds(room)
                assert not room.holds(more)
                events.fill(batch)
            recipe.copies.table.copy_(before)
            recipe.model.zero_grad()
            (loss,) = recipe._loss_of(events)
            loss.backward()
            rows = recipe.copies.table.clone()
            found.append([loss.detach(), *(p.grad.clone() for p in recipe.model.parameters() if p.grad is not None)])
            if len(rows):
                rows[recipe.copies.spare_row] = 0
            found[-1].append(rows)
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)
        if model != "tgat":
            assert not torch.equal(recipe.copies.table, before)
            recipe.copies.table.copy_(before)
            events.rehearse(batch)
            recipe._loss_of(events)[0].backward()
            changed = (recipe.copies.table != before).any(1).nonzero().flatten().tolist()
            assert changed in ([], [recipe.copies.spare_row])  # a rehearsal writes nothing that is read
    recipe.close()


class Eager(capturing._RecordedStep):
    """Computes on the padded twin, in place of a recording."""

    made = 0

    def __init__(self, model, loss, room, batch):
        self.loss, self.batch = loss, batch.padded(room, model)
        Eager.made += 1

    def replay(self, batch):
        self.batch.fill(batch)
        found = self.loss(self.batch)
        found[0].backward()
        return found[0].detach(), *found[1:]


@pytest.mark.parametrize("parallel", ["1x1x1", "2x2x2"])
def test_steps_on_padded_twins_train_as_steps_as_usual_do(stream, parallel, monkeypatch):
    monkeypatch.setattr(capturing, "_RecordedStep", Eager)
    monkeypatch.setattr(hr.train.TemporalOptions, "__post_init__", lambda self: None)  # without a GPU it is refused
    usual, replayed = (trained(stream, options(parallel=parallel, lanes="together", capture=c)) for c in ("never", "always"))
    assert replayed[1].captured.replays == len(replayed[0].losses) - 4
    assert Eager.made >= 1
    assert_same((usual[0], usual[1]), replayed, 1)


def assert_same_batch(mine, other, *, apart=False):
    for field in dataclasses.fields(mine):
        a, b = getattr(mine, field.name), getattr(other, field.name)
        if field.name == "blocks":
            assert [(x.num_src, x.indptr.tolist(), x.indices.tolist()) for x in a] == [
                (x.num_src, x.indptr.tolist(), x.indices.tolist()) for x in b
            ]
        elif isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype
            assert torch.equal(a, b), field.name
            assert not apart or a.data_ptr() != b.data_ptr() or not len(a)
        else:
            assert a == b


def test_a_batch_that_was_moved_is_the_batch(stream):
    recipe = recipe_for(stream, options(parallel="2x1x1", lanes="apart", model="tgat", static="features"), torch.ones(60, 8))
    batch = recipe.make.make(7, 0)
    assert_same_batch(batch, batch.copied(torch.device("cpu")), apart=True)
    assert batch.to("cpu") is batch
    recipe.close()


@pytest.mark.parametrize("how", [{}, {"in_batch": "visible"}, {"memory": False}, {"negatives": False}])
def test_batches_that_are_made_together_are_those_that_are_made_one_by_one(stream, how):
    how = dict(how)
    seen = {"neighbors": (4, 3), "group": 3, "in_batch": how.pop("in_batch", "hidden")}
    made = EventBatches(stream, cut_events(stream, 0, 1000, 70), EventNegatives(stream, amount=2), **seen)
    asked = [Asked(batch, batch % 3, since) for batch, since in zip(range(made.num_batches), [0, 150, 400] * 5, strict=False)]
    for each, batch in zip(asked, made.make_all(asked, **how), strict=True):
        assert_same_batch(batch, made.make(each.batch, each.epoch, since=each.since, **how))


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match="capture says what a GPU does"):
        options(capture="always")
    with pytest.raises(ValueError, match="2 ranks: leave lanes out"):
        options(lanes="together").resolved(2)
    assert options().resolved(1).lanes == "apart"


@pytest.mark.parametrize(("parallel", "stop"), [("1x1x1", 9), ("1x3x2", 26)])
def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(stream, tmp_path, parallel, stop):
    class CtrlC(Watcher):
        steps = 0

        def step(self, *event, **facts):
            self.steps += 1
            if self.steps == stop:
                signal.raise_signal(signal.SIGINT)

    chosen = options(parallel=parallel, lanes="together", epochs=12, dropout=0.2, batch_size=60, checkpoint_seconds=0.0)
    whole = hr.train.temporal(stream, chosen, out=tmp_path / "whole", watcher=Watcher())
    with pytest.raises(KeyboardInterrupt):
        hr.train.temporal(stream, chosen, out=tmp_path / "cut", watcher=CtrlC())
    resumed = hr.train.temporal(stream, chosen, out=tmp_path / "cut", resume=True, watcher=Watcher())
    for a, b in zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    ends = [hr.train.Run(tmp_path / name).load_checkpoint()["recipe"]["memory"] for name in ("whole", "cut")]
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    with pytest.raises(ValueError, match="begun with lanes together, not apart"):
        hr.train.temporal(stream, dataclasses.replace(chosen, lanes="apart"), out=tmp_path / "cut", resume=True)
