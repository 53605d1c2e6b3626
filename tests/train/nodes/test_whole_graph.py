"""Training on a whole graph: kept sums change nothing but the time, and the log says what was done."""

import pytest
import torch

import headrace as hr
from headrace.train import Watcher, node
from headrace.train.nodes.recipe import NodeRecipe
from training_cases import small


@pytest.fixture(scope="module")
def data():
    return hr.generate.community(nodes=500, edges=8_000, classes=4, features=16, seed=1, splits=(0.4, 0.2, 0.4))


class Seen(Watcher):
    def __init__(self):
        self.epochs = []

    def epoch(self, facts):
        self.epochs.append(facts)


@pytest.mark.parametrize("model", ["sage", "gcn", "gin"])
@pytest.mark.parametrize("hidden", [4, 32])
def test_a_run_with_kept_sums_is_one_without(data, model, hidden):
    found = []
    for keep in ("always", "never"):
        seen = Seen()
        changes = {"dropout": 0.0, "hidden": hidden, "epochs": 8, "full_batch": True, "keep_sum": keep}
        result = node(data, options=small(model=model, **changes), watcher=seen)
        found.append((result, seen))
        kept = data.x.nbytes if keep == "always" else 0
        assert {facts["memory"]["first_sum"] for facts in seen.epochs} == {kept}
        assert all(facts["first_sum"].startswith("kept" if kept else "not kept: switched off") for facts in seen.epochs)
    (one, with_sums), (other, without) = found
    for a, b in zip(with_sums.epochs, without.epochs, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3, abs=1e-4)
    assert one.test_accuracy == pytest.approx(other.test_accuracy, abs=0.02)
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(value, other.model.state_dict()[name], rtol=0.02, atol=0.02, msg=name)


def test_sums_are_kept_where_they_pay(data):
    said = []
    for changes in ({"epochs": 30}, {"epochs": 1, "validate": "none"}, {"epochs": 30, "model": "gcn"}):
        seen = Seen()
        node(data, options=small(hidden=2, full_batch=True, **changes), watcher=seen)
        said.append(seen.epochs[-1]["first_sum"])
    assert said[0] == "kept: 61 uses of a sum over 16 columns that never changes"
    assert said[1] == "not kept: summing at each of 2 uses costs less than once over 16 columns"
    assert said[2] == "not kept: dropout of the input changes the features at every step"


def test_what_is_not_a_whole_graph_has_no_sums_to_keep(data):
    with pytest.raises(ValueError, match="keep_sum keeps sums over a whole graph: it needs full_batch"):
        small(keep_sum="always")
    with pytest.raises(ValueError, match="keep_sum must be one of auto, always, never, not 'on'"):
        small(keep_sum="on", full_batch=True)
    seen = Seen()
    node(data, options=small(epochs=1), watcher=seen)
    assert "first_sum" not in seen.epochs[0]


def test_seeds_and_labels_are_moved_once(data):
    recipe = NodeRecipe(data, hr.nn.GNN(16, 8, 4, layers=2), small(full_batch=True))
    assert torch.equal(recipe.seeds, data.splits["train"])
    assert torch.equal(recipe.seed_labels, data.y[data.splits["train"]])


def test_weights_of_edges_are_used(data):
    draw = torch.Generator().manual_seed(3)
    weighted = hr.Dataset(
        data.graph.with_weight(torch.rand(data.num_edges, generator=draw)), x=data.x, y=data.y, splits=data.splits
    )
    how = {"model": "gcn", "full_batch": True, "epochs": 5, "dropout": 0.0}
    found = [node(weighted, options=small(**how, keep_sum=keep)).model.state_dict() for keep in ("always", "never")]
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-3, atol=1e-4)
    plain = node(data, options=small(**how)).model.state_dict()
    assert not torch.allclose(plain["layers.0.conv.lin.weight"], found[0]["layers.0.conv.lin.weight"], atol=1e-4)
