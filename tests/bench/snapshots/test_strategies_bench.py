"""The benchmark of strategies: its peer learns what ours does, wrong losses report nothing, a GPU is refused."""

from contextlib import ExitStack

import pytest
import torch

import headrace as hr
from headrace.bench import BENCHES
from headrace.bench.snapshots.job import SYSTEMS
from headrace.bench.snapshots.strategies import SnapshotSetting, check_equal
from headrace.ranks import Alone
from headrace.train import SnapshotOptions, Watcher
from headrace.train.fit import Setup
from headrace.train.snapshots.recipe import SnapshotRecipe
from headrace.train.snapshots.windows import Windows


@pytest.mark.parametrize("model", ["tgcn", "gclstm"])
@pytest.mark.parametrize("kind", ["changing nodes", "one graph"])
def test_the_peer_has_our_loss_and_gradients(model, kind):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    from headrace.bench.snapshots.peer import PeerTraining

    data = hr.generate.snapshots(nodes=15, edges=50, steps=16, features=3, seed=7)
    edges = [data.graph(t).edge_index() for t in range(16)]
    edges = [(src[src != dst], dst[src != dst]) for src, dst in edges]  # PyG keeps one loop of a node, with its own weight
    if kind == "one graph":
        data = hr.Snapshots([edges[0]] * 16, data.num_nodes, x=torch.randn(16, data.num_nodes, 3), y=data.y)
    else:
        data = hr.Snapshots(edges, data.num_nodes, x=data.x, y=data.y, mask=data.mask, nodes=data.nodes)
    options = SnapshotOptions(model=model, window=4, hidden=8, groups=3, val=0.0, test=0.0, skip=False)
    windows = Windows.of(data, options)
    with ExitStack() as opened:
        recipe = SnapshotRecipe(windows, Setup(options, None, None, Alone(), 1, Watcher(), opened))
    groups = recipe.steps_of(0)[0]
    loss = recipe.loss_of(groups)
    loss.backward()
    peer = PeerTraining(model, windows, recipe.model.state_dict(), 8, lr=0.0)
    assert peer.step(groups) == pytest.approx(float(loss.detach()), rel=1e-5)
    ours = dict(recipe.model.cell.named_parameters())
    for name, parameter in peer.cell.named_parameters():
        torch.testing.assert_close(parameter.grad, ours[name].grad, rtol=1e-4, atol=1e-6)


def test_a_window_of_twelve_takes_the_peer_36_sums():
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    from headrace.bench.snapshots.peer import PeerTraining

    data = hr.generate.snapshots(nodes=15, edges=50, steps=16, features=3, seed=7)
    options = SnapshotOptions(window=12, hidden=4, groups=3, val=0.0, test=0.0, skip=False)
    windows = Windows.of(data, options)
    with ExitStack() as opened:
        recipe = SnapshotRecipe(windows, Setup(options, None, None, Alone(), 1, Watcher(), opened))
    peer, sums = PeerTraining("tgcn", windows, recipe.model.state_dict(), 4, lr=0.0), []
    for name in "zrh":
        getattr(peer.cell, f"conv_{name}").register_forward_hook(lambda *_: sums.append(1))
    peer.step(windows.groups["train"][:1])
    assert len(sums) == 36


def test_losses_that_differ_report_nothing():
    check_equal({"balanced": 1.0, "vertex": 1.00001})
    with pytest.raises(RuntimeError, match="losses of the first step differ, and nothing is reported"):
        check_equal({"balanced": 1.0, "vertex": 1.01})


def test_a_gpu_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="bench snapshots runs on a CPU alone, not on cuda"):
        BENCHES["snapshots"].run(SnapshotSetting(device="cuda"))


@pytest.mark.slow
def test_all_strategies_are_measured_in_one_run():
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    rows = BENCHES["snapshots"].run(SnapshotSetting(scale=0.01, repeats=1, models=("gclstm",)))
    step, one, ratio, bound, sent = rows[:5]
    assert set(step.peers) | {"everything on"} >= set(SYSTEMS)
    assert one.ours == step.peers["balanced"]
    assert step.limit is not None
    assert step.limit > 0
    assert ratio.peers["the schedule says"] > 1
    assert min(bound.ours, *bound.peers.values()) >= 1
    assert sent.peers["vertex"] > sent.ours > 0
