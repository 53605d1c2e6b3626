"""Nodes without features train on rows of their own."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import headrace as hr
from headrace.train import Run, Watcher, node
from headrace.train.inference.predict import write_predictions
from headrace.train.nodes.node import make_model
from headrace.train.nodes.own_rows import OwnRows
from training_cases import assert_same_weights, ctrl_c_at, small


@pytest.fixture(scope="module")
def bare() -> hr.Dataset:
    data = hr.generate.community(nodes=600, edges=12_000, classes=3, features=4, homophily=0.9, seed=2, splits=(0.3, 0.2, 0.5))
    return hr.Dataset(data.graph, y=data.y, splits=data.splits)


class Notes(Watcher):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("whole", [False, True], ids=["sampled", "whole"])
def test_rows_of_their_own_learn_classes_and_it_is_said(bare, whole) -> None:
    seen = Notes()
    options = small(epochs=10 if not whole else 40, full_batch=whole, dropout=0.2)
    result = node(bare, options=options, watcher=seen)
    assert result.test_accuracy > 0.75  # a third by chance
    assert any("each trains on a row of its own, 16 learned numbers" in note for note in seen.notes)


@pytest.mark.parametrize("conv", ["sage", "gcn", "gat"])
def test_gradients_are_those_of_the_same_rows_as_features(bare, conv) -> None:
    options = small(model=conv, dropout=0.0)
    torch.manual_seed(0)
    model = make_model(bare, options)
    assert isinstance(model, OwnRows)
    loader = hr.loader.NeighborLoader(bare, [5, 5], "train", batch_size=40, seed=3)
    batch = next(iter(loader))
    F.cross_entropy(model(batch), batch.y).backward()
    x = model.rows.detach().clone().requires_grad_()
    featured = next(iter(hr.loader.NeighborLoader(replace(bare, x=x.detach()), [5, 5], "train", batch_size=40, seed=3)))
    assert torch.equal(featured.n_id, batch.n_id)
    featured.__dict__["x"] = x[featured.n_id.long()]
    F.cross_entropy(model.network(featured), batch.y).backward()
    assert torch.allclose(model.rows.grad, x.grad, atol=1e-7)
    untouched = torch.ones(bare.num_nodes, dtype=torch.bool)
    untouched[batch.n_id.long()] = False
    assert not model.rows.grad[untouched].any()


def test_resumed_run_and_predictions_are_those_of_the_model(bare, tmp_path) -> None:
    options = small(epochs=4)
    node(bare, options=options, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        node(bare, options=options, out=tmp_path / "run", watcher=ctrl_c_at("step", 5))
    node(bare, options=options, out=tmp_path / "run", resume=True)
    states = [Run(tmp_path / name).load_checkpoint("last")["model"] for name in ("whole", "run")]
    assert_same_weights(states[1], states[0])
    assert "rows" in states[0]
    assert write_predictions(tmp_path / "run", bare, tmp_path / "p.parquet") == bare.num_nodes
    other = hr.generate.community(nodes=50, edges=200, classes=3, features=0)
    with pytest.raises(ValueError, match=r"learned rows of 600 nodes, and the dataset has 50"):
        write_predictions(tmp_path / "run", replace(other, x=None), tmp_path / "p.parquet")


def test_what_asks_for_features_is_refused(bare) -> None:
    with pytest.raises(ValueError, match="no features that could be scaled: leave out features rows"):
        node(bare, options=small(features="rows"))
    with pytest.raises(ValueError, match="has no features, and learned rows are in memory: leave out storage disk"):
        node(bare, options=small(storage="disk", memory="1GiB"))
    with pytest.raises(ValueError, match="this dataset has no features"):
        node(bare, model=hr.nn.GNN(4, 4, 3, layers=2), options=small())
