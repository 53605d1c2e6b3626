import csv
import dataclasses
import os
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.train import NodeOptions, Watcher, infer, node
from headrace.train.inference.predict import load_model, write_predictions

runner = CliRunner()
predictions = sys.modules["headrace.train.inference.predict"]
OPTIONS = NodeOptions(hidden=8, fanout=(4, 4), batch_size=60, epochs=4, lr=0.05, threads=1)


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return hr.generate.community(nodes=500, edges=6000, classes=3, features=8, seed=2, splits=(0.4, 0.2, 0.4))


@pytest.fixture(scope="module")
def saved(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "small"
    data.save(path)
    return path


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    result = node(data, options=OPTIONS, out=path)
    return path, result.model


def predict(*arguments):
    return runner.invoke(app, ["predict", *map(str, arguments)])


def predicted(*arguments, out) -> pa.Table:
    result = predict(*arguments, "--out", out)
    assert result.exit_code == 0, result.output
    assert f"{out}: " in result.stdout.replace("\n", "")
    assert [file.name for file in out.parent.iterdir() if file.name.endswith(".new")] == []
    return pq.read_table(out)


def refused(*arguments, out) -> str:
    """The one line that says why, and nothing was written."""
    out.parent.mkdir(exist_ok=True)
    before = sorted(out.parent.iterdir())
    result = predict(*arguments, "--out", out)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("headrace: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert sorted(out.parent.iterdir()) == before
    return result.stderr


def test_labels_are_the_best_of_exact_inference(data, saved, run, tmp_path):
    path, model = run
    table = predicted(path, saved, out=tmp_path / "p.parquet")
    rows = infer(model, data)
    assert table.column_names == ["node", "label", "probability"]
    assert table["node"].to_pylist() == list(range(500))
    assert table["label"].to_pylist() == rows.argmax(dim=1).tolist()
    np.testing.assert_allclose(table["probability"].to_numpy(), rows.softmax(dim=1).max(dim=1).values.numpy(), rtol=1e-5)
    assert float((torch.tensor(table["label"].to_pylist()) == data.y).float().mean()) > 0.6


def test_a_csv_file_is_csv_and_a_npy_file_an_array(data, saved, run, tmp_path):
    table = predicted(run[0], saved, "--probabilities", out=tmp_path / "p.parquet")
    assert predict(run[0], saved, "--out", tmp_path / "p.csv", "--probabilities").exit_code == 0
    with open(tmp_path / "p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["node", "label", "probability", *(f"probability of {c}" for c in range(3))]
    assert [int(row["label"]) for row in rows] == table["label"].to_pylist()
    assert [[float(row[f"probability of {c}"]) for c in range(3)] for row in rows] == table["probabilities"].to_pylist()
    assert predict(run[0], saved, "--out", tmp_path / "p.npy").exit_code == 0
    assert np.load(tmp_path / "p.npy").tolist() == table["label"].to_pylist()
    assert predict(run[0], saved, "--out", tmp_path / "all.npy", "--probabilities").exit_code == 0
    assert np.load(tmp_path / "all.npy").tolist() == table["probabilities"].to_pylist()
    message = refused(run[0], saved, out=tmp_path / "p.txt")
    assert "end it with .parquet, .csv or .npy" in message


@pytest.mark.parametrize("several", [False, True])
def test_classes_are_named_as_the_training_data_named_them(data, several, tmp_path):
    y = torch.nn.functional.one_hot(data.y, 3) if several else data.y
    names = ["a", "b, and more", "c"]
    trained = dataclasses.replace(data, y=y, info={**data.info, "class_names": names})
    node(trained, options=OPTIONS, out=tmp_path / "run")
    data.save(tmp_path / "plain")  # whose classes have no names
    table = predicted(tmp_path / "run", tmp_path / "plain", out=tmp_path / "p.parquet")
    assert predict(tmp_path / "run", tmp_path / "plain", "--out", tmp_path / "p.csv").exit_code == 0
    with open(tmp_path / "p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    labels, classes = table["label"].to_pylist(), table["class"].to_pylist()
    if several:
        assert classes == [[names[label] for label in row] for row in labels]
        assert [row["class"] for row in rows] == [";".join(row) for row in classes]
    else:
        assert classes == [names[label] for label in labels] == [row["class"] for row in rows]


def test_probabilities_of_every_class_can_be_had(data, saved, run, tmp_path):
    path, model = run
    table = predicted(path, saved, "--probabilities", out=tmp_path / "p.parquet")
    found = torch.tensor(table["probabilities"].to_pylist())
    torch.testing.assert_close(found, infer(model, data).softmax(dim=1), atol=1e-5, rtol=1e-5)


def test_row_groups_follow_one_another(data, saved, run, tmp_path, monkeypatch):
    path, _ = run
    whole = predicted(path, saved, "--probabilities", out=tmp_path / "whole.parquet")
    monkeypatch.setattr(predictions, "_ROWS", 77)
    parts = predicted(path, saved, "--probabilities", out=tmp_path / "parts.parquet")
    assert parts.equals(whole)
    assert pq.ParquetFile(tmp_path / "parts.parquet").num_row_groups == 7


def test_a_file_that_is_there_is_replaced(saved, run, tmp_path):
    out = tmp_path / "p.parquet"
    out.write_text("old")
    assert predicted(run[0], saved, out=out).num_rows == 500


def test_the_file_is_predictions_parquet_unless_said_otherwise(saved, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert predict(run[0], saved).exit_code == 0
    assert pq.read_table("predictions.parquet").num_rows == 500


def test_original_ids_come_back(tmp_path):
    """Papers with names, imported, trained on and predicted: each row says which paper it is."""
    data = hr.generate.community(nodes=200, edges=3000, classes=3, features=4, seed=1, splits=(0.5, 0.2, 0.3))
    names = [f"paper {(7 * i) % 200:03d}" for i in range(200)]  # in another order than the nodes
    source, target = data.graph.edge_index().tolist()
    edges = [f"{names[s]},{names[t]}" for s, t in zip(source, target, strict=True)]
    (tmp_path / "edges.csv").write_text("\n".join(["from,to", *edges]) + "\n")
    split = {int(i): name for name, ids in data.splits.items() for i in ids}
    rows = [",".join([names[i], "abc"[data.y[i]], split[i], *map(str, data.x[i].tolist())]) for i in range(200)]
    (tmp_path / "nodes.csv").write_text("\n".join(["paper,field,split,a,b,c,d", *rows]) + "\n")
    files = [tmp_path / "edges.csv", tmp_path / "papers", "--header", "yes", "--nodes", tmp_path / "nodes.csv"]
    columns = ["--id-column", "paper", "--label-column", "field", "--split-column", "split", "--feature-columns", "a,b,c,d"]
    imported = runner.invoke(app, ["import", *map(str, files), *columns])
    assert imported.exit_code == 0, imported.output
    papers = hr.open(tmp_path / "papers")
    result = node(papers, options=OPTIONS, out=tmp_path / "run")
    table = predicted(tmp_path / "run", tmp_path / "papers", out=tmp_path / "p.parquet")
    assert table.column_names == ["node", "id", "label", "class", "probability"]
    assert table["class"].to_pylist() == ["abc"[label] for label in table["label"].to_pylist()]
    assert table["id"].to_pylist() == sorted(names)
    labels = dict(zip(table["id"].to_pylist(), table["label"].to_pylist(), strict=True))
    # The same model on the graph as it was before the import says the same of each paper.
    classes = papers.info["class_names"]
    rows = infer(result.model, hr.Dataset(data.graph, x=data.x))
    assert [labels[names[i]] for i in range(200)] == rows.argmax(dim=1).tolist()
    assert list(classes) == ["a", "b", "c"]


def test_several_labels_are_those_above_a_half(data, tmp_path):
    y = torch.stack([data.y == 0, data.y != 1, data.y == 2], dim=1)
    several = hr.Dataset(data.graph, x=data.x, y=y, splits=data.splits)
    several.save(tmp_path / "several")
    result = node(several, options=OPTIONS, out=tmp_path / "run")
    table = predicted(tmp_path / "run", tmp_path / "several", "--probabilities", out=tmp_path / "p.parquet")
    rows = infer(result.model, several)
    assert table["label"].to_pylist() == [row.nonzero().flatten().tolist() for row in rows > 0]
    assert {len(labels) for labels in table["label"].to_pylist()} >= {1, 2}
    torch.testing.assert_close(torch.tensor(table["probabilities"].to_pylist()), rows.sigmoid(), atol=1e-5, rtol=1e-5)


def test_a_run_predicts_on_nodes_it_never_saw(run, tmp_path):
    other = hr.generate.community(nodes=300, edges=3000, classes=3, features=8, seed=9)
    hr.Dataset(other.graph, x=other.x).save(tmp_path / "unlabeled")
    table = predicted(run[0], tmp_path / "unlabeled", out=tmp_path / "p.parquet")
    assert table["label"].to_pylist() == infer(run[1], other).argmax(dim=1).tolist()


def test_features_are_scaled_as_they_were_in_training(data, tmp_path):
    words = dataclasses.replace(data, x=(data.x > 1).float())
    model = node(words, options=dataclasses.replace(OPTIONS, features="rows"), out=tmp_path / "run").model
    dense = hr.Dataset(data.graph, x=data.x.abs())
    dense.save(tmp_path / "dense")
    table = predicted(tmp_path / "run", tmp_path / "dense", "--probabilities", out=tmp_path / "p.parquet")
    scaled = hr.Dataset(data.graph, x=dense.x / dense.x.sum(dim=1, keepdim=True))
    torch.testing.assert_close(torch.tensor(table["probabilities"].to_pylist()), infer(model, scaled).softmax(dim=1))


def test_of_several_repeats_the_first_predicts(data, saved, tmp_path):
    node(data, options=dataclasses.replace(OPTIONS, repeats=2), out=tmp_path / "run")
    table = predicted(tmp_path / "run", saved, out=tmp_path / "p.parquet")
    alone = predicted(tmp_path / "run" / "repeat-0", saved, out=tmp_path / "q.parquet")
    assert table.equals(alone)


def test_a_run_that_is_not_finished_says_so(data, saved, tmp_path):
    class Stop(Watcher):
        def step(self, event, clock):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        node(data, options=OPTIONS, out=tmp_path / "run", watcher=Stop())
    message = refused(tmp_path / "run", saved, out=tmp_path / "p.parquet")
    assert "has no best model yet: let it finish (resume it), then predict" in message


def test_data_of_another_shape_says_so(data, run, tmp_path):
    hr.Dataset(data.graph, x=data.x[:, :5].contiguous()).save(tmp_path / "narrow")
    assert "the model takes 8 features, the dataset has 5" in refused(run[0], tmp_path / "narrow", out=tmp_path / "p.parquet")
    hr.Dataset(data.graph).save(tmp_path / "bare")
    assert "the model takes 8 features, the dataset has 0" in refused(run[0], tmp_path / "bare", out=tmp_path / "p.parquet")
    hr.Dataset(data.graph, x=data.x.double()).save(tmp_path / "double")
    assert "features are torch.float64" in refused(run[0], tmp_path / "double", out=tmp_path / "p.parquet")


def test_a_run_of_a_model_of_its_own_says_so(data, saved, tmp_path):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 3)

        def forward(self, batch):
            return self.linear(batch.x[: batch.batch_size])

    node(data, OPTIONS, model=Own(), out=tmp_path / "run")
    assert "trained a model of its own, not the sage" in refused(tmp_path / "run", saved, out=tmp_path / "p.parquet")


def test_what_is_no_run_or_no_dataset_says_so(saved, run, tmp_path):
    assert "is no run" in refused(tmp_path / "nothing", saved, out=tmp_path / "p.parquet")
    assert "there is no dataset at" in refused(run[0], tmp_path / "nothing", out=tmp_path / "p.parquet")


def test_a_damaged_model_says_so(data, saved, tmp_path):
    node(data, options=OPTIONS, out=tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "best.pt").write_bytes(b"x")
    assert "best.pt is damaged" in refused(tmp_path / "run", saved, out=tmp_path / "p.parquet")


def test_a_place_that_cannot_be_written_is_told_before_the_work(saved, run, tmp_path, monkeypatch):
    monkeypatch.setattr(predictions, "infer", None)  # would fail if it were called
    result = predict(run[0], saved, "--out", tmp_path / "missing" / "p.parquet")
    assert result.exit_code == 2
    assert "there is no directory" in result.stderr


@pytest.mark.parametrize("failure", ["full disk", "interrupt", "a directory is in the way"])
def test_of_predictions_that_fail_no_file_is_left(data, saved, run, tmp_path, monkeypatch, failure):
    out = tmp_path / "p.parquet"
    monkeypatch.setattr(predictions, "_ROWS", 100)
    if failure == "full disk":
        (tmp_path / "p.parquet.new").symlink_to("/dev/full")
        assert "No space left on device" in predict(run[0], saved, "--out", out).stderr
    elif failure == "interrupt":
        seen = []

        def interrupted(part, *more):
            seen.append(len(part))
            if len(seen) == 3:
                raise KeyboardInterrupt
            return labels(part, *more)

        labels = predictions._labels
        monkeypatch.setattr(predictions, "_labels", interrupted)
        out.write_text("before")
        with pytest.raises(KeyboardInterrupt):
            write_predictions(run[0], data, out)
        assert out.read_text() == "before"
        out.unlink()
    else:
        out.mkdir()
        assert predict(run[0], saved, "--out", out).exit_code == 2
        out.rmdir()
    assert os.listdir(tmp_path) == []


def test_the_model_of_a_run_can_be_loaded(data, run):
    model, options = load_model(run[0], data)
    assert options == dataclasses.replace(
        OPTIONS, accumulate=1, layers=2, patience=0, weight_decay=0.0
    )  # what the defaults mean for this run
    assert torch.equal(infer(model, data), infer(run[1], data))
