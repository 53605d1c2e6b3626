"""`headrace export` and `headrace neighbors`."""

import gzip
import json
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from headrace.cli import app

runner = CliRunner()
QUICK = ["--dim", "4", "--epochs", "1", "--batch-size", "20", "--negatives", "5", "--chunks", "2", "--threads", "1"]
QUICK += ["--no-reciprocal"]


def command(*arguments):
    return runner.invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a dataset `people`, a run that was trained on it, and one on a generated graph."""
    root = tmp_path_factory.mktemp("root")
    (root / "data" / "people").mkdir(parents=True)
    triples = np.array([[i, i % 2, (i + 1 + i % 2) % 12] for i in range(12)], np.int32)
    file = root / "data" / "people" / "people.npz"
    np.savez(file, train=triples, valid=triples[:2], test=triples[:2], num_entities=12, num_relations=2)
    for name, lines in (("entities", [f"person-{i}" for i in range(12)]), ("relations", ["knows", "likes"])):
        with gzip.open(file.parent / f"{name}.txt.gz", "wt") as text:
            text.write("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for spec, name in (("people", "run"), ("generate:community?nodes=40&edges=300&classes=2&features=2", "generated")):
            done = command("train", "link", spec, *QUICK, "--out", root / name)
            assert done.exit_code == 0, done.output
    return root


@pytest.fixture(autouse=True)
def _in_root(runs, monkeypatch):
    monkeypatch.chdir(runs)


@pytest.mark.parametrize("format", ["parquet", "npy"])
def test_export_finds_the_names_of_the_run(tmp_path, format):
    done = command("export", "run", "--format", format, "--out", tmp_path / f"e.{format}")
    assert done.exit_code == 0, done.output
    assert "12 nodes with names, 4 floats each; 2 relations" in done.stdout
    assert "exporting" in done.stderr
    if format == "npy":
        assert np.load(tmp_path / "e.npy").shape == (12, 4)
        assert (tmp_path / "e.relations.names.txt").read_text() == "knows\nlikes\n"
    else:
        assert pq.read_table(tmp_path / "e.parquet")["id"].to_pylist()[3] == "person-3"
    again = command("export", "run", "--format", format, "--out", tmp_path / f"e.{format}")
    assert again.exit_code == 2
    assert "exists: remove it" in again.stderr


def test_export_goes_on_without_names(runs, tmp_path, monkeypatch):
    done = command("export", "generated", "--out", tmp_path / "g.parquet")
    assert "40 nodes without names" in done.stdout
    monkeypatch.chdir(tmp_path)
    done = command("export", runs / "run", "--out", tmp_path / "e.parquet")
    assert done.exit_code == 0, done.output
    assert "names are left out" in done.stderr
    asked = command("export", runs / "run", "--out", tmp_path / "f.parquet", "--dataset", "people")
    assert asked.exit_code == 2


def test_neighbors_are_shown_by_name():
    done = command("neighbors", "run", "person-3", "--relation", "likes", "--k", "2")
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.split())
    for words in ("nearest to person-3 (cosine)", "person-3, likes, ?", "?, likes, person-3"):
        assert words in shown


def test_neighbors_as_json():
    found = json.loads(command("neighbors", "run", "3", "--k", "2", "--json").stdout)
    assert (found["node"], found["name"], found["relation"]) == (3, "person-3", None)
    assert len(found["nearest"]) == 2
    assert set(found["nearest"][0]) == {"node", "name", "score"}
    assert json.loads(command("neighbors", "generated", "3", "--relation", "0", "--numbers", "--json").stdout)["relation"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "PERSON-11"], "did you mean 'person-11'?"),
        (["run", "person-3", "--relation", "hates"], "there is no relation 'hates'"),
        (["run", "person-3", "--numbers"], "no number"),
        (["run", "person-3", "--k", "0"], "k must be at least 1"),
        (["data", "person-3"], "no run"),
    ],
)
def test_wrong_questions_are_refused_in_one_line(arguments, message):
    done = command("neighbors", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_interrupted_export_says_so(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["headrace.cli.trained.export"], "export_rows", stop)
    done = command("export", "run", "--out", tmp_path / "e.parquet")
    assert done.exit_code == 130
    assert "interrupted: nothing was written" in done.stderr
