"""Temporal training keeps its bits whatever runs beside it, reads and writes by the schedule, and sees no future."""

import pytest
import torch

import headrace as hr
from headrace.train.events.event import _tgn
from headrace.train.events.forward import Forward
from headrace.train.events.recipe import TemporalRecipe
from headrace.train.loop import Trainer
from headrace.train.watching.watch import Watcher


class Losses(Watcher):
    def __init__(self):
        self.losses = []

    def step(self, event, seconds):
        self.losses.append(event.loss)


def options(**more):
    base = {"epochs": 1, "hidden": 16, "neighbors": 4, "batch_size": 10, "dropout": 0.0, "optimizer": "sgd", "lr": 1e-4}
    return hr.train.TemporalOptions(**(base | {"threads": 1, "candidates": 3} | more))


@pytest.fixture(scope="module")
def stream():
    return hr.EventStream.of(hr.generate.events(nodes=60, events=1500, new=0.02, seed=5))


def trained(stream, chosen, *, frozen=False):
    torch.manual_seed(0)
    watcher = Losses()
    model = Forward(_tgn(chosen, stream, 0), None)
    recipe = TemporalRecipe(stream, stream.splits(), model, chosen, evaluates=False)
    trainers = recipe.schedule.trainers
    trainer = Trainer(recipe, chosen, None, watcher, accumulate=trainers)
    if frozen:
        recipe.update.optimizer.step = lambda: None
    trainer.epoch()
    recipe.copies.settle()
    recipe.close()
    return watcher.losses, recipe


def test_running_ahead_changes_no_bit(stream):
    now, ahead = (trained(stream, options(staleness=staleness)) for staleness in (0, 4))
    assert now[0] == ahead[0]
    assert torch.equal(now[1].memories[0].rows, ahead[1].memories[0].rows)


@pytest.mark.parametrize("parallel", ["1x1x1", "2x1x1", "1x3x1", "1x1x2", "2x2x2"])
def test_the_log_obeys_the_schedule(stream, parallel):
    _, recipe = trained(stream, options(parallel=parallel, batch_size=50))
    schedule = recipe.schedule
    for copy, memory in recipe.memories.items():
        log = list(memory.log)
        assert [operation.ticket for operation in log] == list(range(2 * schedule.batches))
        for kind in ("read", "write"):
            assert sorted(o.batch for o in log if o.operation == kind) == list(range(schedule.batches))
        turns = [t for n in range(schedule.iterations) for t in schedule.turns(n) if t is not None and t.copy == copy and t.reads]
        tickets = {turn.ticket: ("read", turn.batch) for turn in turns}
        tickets |= {turn.ticket + turn.group: ("write", turn.batch) for turn in turns}
        assert [(o.operation, o.batch) for o in log] == [tickets[ticket] for ticket in sorted(tickets)]
        for group in range(schedule.groups):
            members = schedule.members(group)
            begin, end = int(recipe.make.cuts[members[0]]), int(recipe.make.cuts[members[-1] + 1])
            distinct = torch.cat([stream.src[begin:end], stream.dst[begin:end]]).unique()
            assert sum(o.rows for o in log if o.operation == "write" and o.batch in members) == len(distinct)


def test_memory_of_frozen_weights_is_the_serial_one(stream):
    serial = trained(stream, options(batch_size=50), frozen=True)[1].memories[0].rows
    epochs = trained(stream, options(batch_size=50, parallel="1x3x1"), frozen=True)[1].memories[0].rows
    other = trained(stream, options(batch_size=50, seed=9), frozen=True)[1].memories[0].rows
    copies = trained(stream, options(batch_size=50, parallel="1x1x2"), frozen=True)[1].memories
    assert torch.equal(serial, epochs)
    assert torch.equal(serial, other)  # other negatives
    assert torch.equal(serial, copies[0].rows)
    together = trained(stream, options(batch_size=25, parallel="2x1x1"), frozen=True)[1].memories[0].rows
    assert torch.allclose(serial, together, atol=1e-6)


def test_no_batch_sees_the_future(stream):
    train = stream.splits().train
    noise = torch.Generator().manual_seed(1)
    cut = 600
    src, dst = stream.src.clone(), stream.dst.clone()
    src[cut:] = src[cut:][torch.randperm(len(src) - cut, generator=noise)]
    dst[cut:] = dst[cut:][torch.randperm(len(dst) - cut, generator=noise)]
    time = stream.time.clone()
    time[cut:] = time[cut - 1] + torch.randint(1, 40, (len(time) - cut,), generator=noise).cumsum(0)
    ends = {"val_time": int(time[train - 1]), "test_time": int(time[train + 200])}
    other = hr.EventStream(src, dst, time, num_nodes=stream.num_nodes, **ends)
    assert other.splits().train == train > cut
    losses, changed = trained(stream, options())[0], trained(other, options())[0]
    assert losses[: cut // 10] == changed[: cut // 10]
    assert losses[cut // 10 :] != changed[cut // 10 :]


@pytest.mark.parametrize("parallel", ["1x1x1", "1x3x1", "1x1x2"])
def test_evaluation_goes_on_with_the_memory_that_training_ended_with(stream, parallel):
    chosen = options(parallel=parallel, batch_size=50, lr=1e-30)
    torch.manual_seed(0)
    recipe = TemporalRecipe(stream, stream.splits(), Forward(_tgn(chosen, stream, 0), None), chosen)
    Trainer(recipe, chosen, None, Watcher(), accumulate=recipe.schedule.trainers).epoch()
    replayed = recipe.evaluator.split(recipe.model, "val", lambda done, total: None)
    went_on = recipe.validate(lambda done, total: None)
    for name in ("ap", "auc", "mrr"):  # weights were as they are; rows of batches with other nodes are rounded otherwise
        assert went_on[name] == pytest.approx(replayed[name], abs=2e-3)
    best = recipe.best_state()
    seen = best["node_memory"].clone()
    recipe.memories[0].rows.zero_()
    assert recipe.validate(lambda done, total: None)["ap"] != went_on["ap"]
    recipe.swap_best(best)  # best weights come with the memory that they made
    assert recipe.test(lambda done, total: None)["val"] == went_on
    assert torch.equal(recipe._after, seen)
    recipe.close()
