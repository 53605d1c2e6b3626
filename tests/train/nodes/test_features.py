"""Scaling of features: as asked for, said, and kept with the run."""

import dataclasses
import json

import pyarrow.parquet as pq
import pytest
import torch

import headrace as hr
from headrace.train import NodeOptions, Watcher, node
from headrace.train.inference.predict import write_predictions
from headrace.train.nodes.features import Scaling, scaled

QUICK = {"hidden": 8, "fanout": (4, 4), "epochs": 2, "batch_size": 100, "threads": 1}


@pytest.fixture
def words():
    """Bags of words: sparse, never negative, one of them empty."""
    data = hr.generate.community(nodes=2000, edges=20000, classes=4, features=16, seed=1)
    x = (torch.rand(2000, 16, generator=torch.Generator().manual_seed(0)) > 0.8).float()
    x[7] = 0
    return dataclasses.replace(data, x=x)


class Notes(Watcher):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_features_stay_as_they_are_unless_asked_otherwise(words):
    assert NodeOptions().features == "as_is"
    assert scaled(words, Scaling.of("as_is", words.x)) is words
    seen = Notes()
    node(words, options=NodeOptions(**QUICK), watcher=seen)
    assert seen.notes == []


def test_rows_sum_to_one_but_empty_ones(words):
    sums = scaled(words, Scaling.of("rows", words.x)).x.sum(dim=1)
    assert torch.allclose(sums, (words.x.sum(dim=1) > 0).float())


@pytest.mark.parametrize("shape", [(3000, 5), (1, 4), (7, 1)])
def test_columns_are_standardized_as_in_float64(shape, monkeypatch):
    monkeypatch.setattr("headrace.train.nodes.features._PIECE", 64)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 10 + 1000
    x[:, -1] = 0.1  # constant: not a number that is exact
    rows = Scaling.of("standardize", x)(x)
    wide = x.double()
    deviation = wide.std(dim=0, correction=0)
    deviation[deviation < 1e-9] = 1
    torch.testing.assert_close(rows, ((wide - wide.mean(dim=0)) / deviation).float(), atol=1e-4, rtol=1e-4)
    assert float(rows[:, -1].abs().max()) < 1e-5


@pytest.mark.parametrize("kind", ["rows", "standardize"])
def test_a_scaling_is_said_and_holds_for_other_data_that_the_run_predicts(words, kind, tmp_path):
    seen = Notes()
    result = node(words, options=NodeOptions(**QUICK, features=kind), out=tmp_path / "run", watcher=seen)
    assert sum(f"(features {kind})" in text for text in seen.notes) == 1
    header = json.loads((tmp_path / "run" / "options.json").read_text())
    kept = Scaling.of_run(header)
    other = dataclasses.replace(words, x=words.x * 3 + 2)  # with means of its own
    assert torch.equal(kept(other.x), Scaling.of(kind, words.x)(other.x))
    write_predictions(tmp_path / "run", other, tmp_path / "p.parquet")
    rows = hr.train.infer(result.model, scaled(other, Scaling.of(kind, words.x)))
    assert pq.read_table(tmp_path / "p.parquet")["label"].to_pylist() == rows.argmax(dim=1).tolist()


def test_a_run_goes_on_with_the_same_scaling_alone(words, tmp_path):
    options = NodeOptions(**QUICK, features="standardize")
    node(words, options=options, out=tmp_path / "run")
    with pytest.raises(ValueError, match="was begun with features standardize, not rows"):
        node(words, options=dataclasses.replace(options, features="rows"), out=tmp_path / "run", resume=True)
