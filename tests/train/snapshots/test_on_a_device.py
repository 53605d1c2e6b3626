"""Training on a device, run without one: nothing of it meets what is in host memory, and all has the values of the host."""

from contextlib import ExitStack

import pytest
import torch

import headrace as hr
import snapshot_training
from elsewhere import DEVICE, elsewhere
from headrace.ranks import Alone
from headrace.train import SnapshotOptions, Watcher
from headrace.train.fit import Setup
from headrace.train.snapshots.recipe import SnapshotRecipe
from headrace.train.snapshots.windows import Windows

MODELS = ("tgcn", "a3tgcn", "lrgcn", "gconvgru", "gclstm", "mpnnlstm", "wdgcn", "cdgcn", "evolvegcno", "evolvegcnh")
SHAPE = {"window": 3, "hidden": 8, "groups": 4, "stack": 2, "epochs": 1, "test": 0.3, "val": 0.2}


def sequences(kind):
    torch.manual_seed(1)
    data = snapshot_training.sequence()
    edges = [(*data.graph(t).edge_index(), torch.rand(data.graph(t).num_edges)) for t in range(len(data))]
    nodes = data.num_nodes
    x = torch.randn(len(data), nodes, 3)
    if kind == "changing nodes":
        return data
    if kind == "one graph":
        return hr.Snapshots([edges[0]] * len(data), nodes, x=x, y=data.y, mask=data.mask)
    if kind == "classes":
        return hr.Snapshots(edges, nodes, x=x, y=torch.randint(0, 3, (len(data), nodes)))
    if kind == "nodes that come and go":
        ids = [torch.cat([src, dst]).unique() if len(src) else torch.tensor([0, 2]) for src, dst, _ in edges]
        plain = [pair[:2] for pair in edges]
        return hr.Snapshots(plain, nodes, x=[x[t, own] for t, own in enumerate(ids)], y=data.y, nodes=ids)
    if kind == "links":
        return hr.Snapshots([pair[:2] for pair in edges], nodes)
    return hr.Snapshots(edges, nodes, x=x, y=data.y)


def outcome(data, device, **more):
    """Loss and gradients of a step, figures of both splits, baselines."""
    options = SnapshotOptions(**{**SHAPE, "capture": "never", **more})
    torch.manual_seed(0)
    windows = Windows.of(data, options)
    object.__setattr__(options, "device", device)
    with ExitStack() as opened:
        recipe = SnapshotRecipe(windows, Setup(options, None, None, Alone(), 2, Watcher(), opened))
    groups = recipe.steps_of(0)[0]
    if recipe._on_gpu is None:
        loss = recipe.loss_of(groups)
        gradients = torch.autograd.grad(loss, list(recipe.model.parameters()), allow_unused=True)
    else:
        loss, gradients = recipe._on_gpu(groups)
    tell = lambda done, whole: None  # noqa: E731
    val, test = recipe.validate(tell), recipe.test(tell)["test"]
    assert (loss.device, next(recipe.model.parameters()).device) == (torch.device(device),) * 2
    return float(loss.detach()), [g if g is None else g.tolist() for g in gradients], val, test


def assert_same(some, others):
    if isinstance(some, dict):
        assert some.keys() == others.keys()
        some, others = list(some.values()), list(others.values())
    if isinstance(some, (list, tuple)):
        assert len(some) == len(others)
        for a, b in zip(some, others, strict=True):
            assert_same(a, b)
    elif isinstance(some, float):
        assert some == pytest.approx(others, rel=1e-4, abs=1e-5)
    else:
        assert some == others


def check(kind, **more):
    expected = outcome(sequences(kind), "cpu", **more)
    with elsewhere():
        found = outcome(sequences(kind), str(DEVICE), **more)
    assert_same(found, expected)


@pytest.mark.parametrize("model", MODELS)
def test_every_cell_computes_where_its_rows_are(model):
    check("changing graphs", model=model)


@pytest.mark.parametrize("kind", ["one graph", "changing nodes", "nodes that come and go", "classes", "links"])
@pytest.mark.parametrize("model", ["tgcn", "gclstm"])
def test_every_kind_of_forecast_is_made_where_its_rows_are(kind, model):
    check(kind, model=model, negatives=5)


def test_what_meets_across_devices_is_seen():
    with elsewhere():
        there = torch.ones(3).to(DEVICE)
        assert there.device == DEVICE
        with pytest.raises(RuntimeError, match="mixes tensors of two devices"):
            there + torch.ones(3)
