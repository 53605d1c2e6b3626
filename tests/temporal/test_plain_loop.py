"""Training with everything that runs beside it has the losses and the memory of a loop in plain torch, for every form of model."""

import pytest
import torch
from plain_tgn import plain_losses

import headrace as hr
from headrace.train.events.event import _tgn
from headrace.train.events.recipe import Forward, TemporalRecipe
from headrace.train.loop import Trainer
from headrace.train.watching.watch import Watcher


class Losses(Watcher):
    def __init__(self):
        self.losses = []

    def step(self, event, seconds):
        self.losses.append(event.loss)


def stream_of(events, *, gap, edge=0):
    """`gap`: how many units of time are one, so that several events have one time, in a batch and across two."""
    made = hr.EventStream.of(hr.generate.events(nodes=60, events=events, new=0.02, seed=5))
    edge_x = torch.randn(events, edge, generator=torch.Generator().manual_seed(3)) if edge else None
    return hr.EventStream(made.src, made.dst, made.time // gap, edge_x, num_nodes=60)


def plain_cuts(times, size):
    """Where batches begin that end between two times: from every `size`-th event, on to the first of a later time."""
    starts = []
    for begin in range(0, len(times), size):
        while begin < len(times) and begin and times[begin - 1] == times[begin]:
            begin += 1
        if begin < len(times) and begin not in starts:
            starts.append(begin)
    return [*starts, len(times)]


def both(stream, *, layers=None, **more):
    """Losses and memory of our training and of the plain loop."""
    base = {"epochs": 1, "hidden": 16, "neighbors": 4, "batch_size": 10, "dropout": 0.0, "optimizer": "sgd", "lr": 1e-4}
    chosen = hr.train.TemporalOptions(**(base | {"threads": 1, "candidates": 3, "staleness": 4} | more))
    extra = {} if layers is None else {"layers": layers}
    torch.manual_seed(0)
    watcher, model = Losses(), Forward(_tgn(chosen, stream, 0, **extra), None)
    recipe = TemporalRecipe(stream, stream.splits(), model, chosen, evaluates=False)
    Trainer(recipe, chosen, None, watcher).epoch()
    recipe.copies.settle()
    recipe.close()
    torch.manual_seed(0)
    how = {"neighbors": chosen.neighbors, "batch_size": chosen.batch_size, "cuts": None}
    if chosen.cut == "ties":
        how["cuts"] = plain_cuts(stream.time[: stream.splits().train].tolist(), chosen.batch_size)
    how |= {"in_batch": chosen.in_batch, "rate": chosen.lr, "steps": 1000, "tgn": _tgn(chosen, stream, 0, **extra)}
    drawn = hr.sample.EventNegatives(stream, amount=chosen.negatives, seed=chosen.seed)
    plain, rows = plain_losses(stream, stream.splits().train, negatives=drawn, **how)
    return torch.tensor(watcher.losses), recipe.memories[0].rows, torch.tensor(plain), rows


def test_training_is_the_plain_loop():
    losses, rows, plain, plain_rows = both(stream_of(1500, gap=10))
    assert len(plain) >= 100
    torch.testing.assert_close(losses, plain, rtol=0, atol=1e-6)
    torch.testing.assert_close(rows, plain_rows, rtol=0, atol=1e-5)


FORMS = {
    "in-batch neighbors": ({"in_batch": "visible", "negatives": 3}, {}),
    "cut between times": ({"cut": "ties"}, {}),
    "jodie": ({"model": "jodie"}, {}),
    "dyrep": ({"model": "dyrep"}, {}),
    "attention of PyG, edge features": ({"attention": "pyg"}, {"edge": 3}),
    "two layers, edge features": ({"layers": 2, "neighbors": 3, "in_batch": "visible"}, {"edge": 3}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_plain_loop(form):
    more, edge = FORMS[form]
    stream = stream_of(200 if "layers" in more else 400, gap=40, **edge)
    times = stream.time[: stream.splits().train]
    assert int((times[9:-1:10] == times[10::10]).sum()) > 2  # batches end within a time
    losses, rows, plain, plain_rows = both(stream, **more)
    torch.testing.assert_close(losses, plain, rtol=0, atol=1e-6)
    torch.testing.assert_close(rows, plain_rows, rtol=0, atol=1e-5)
