"""Imports of relations, times and features of edges, held out edges, and what is told before the work begins."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.graph.ingest import IngestError, IngestOptions, Understood, ingest
from headrace.graph.ingest.files.recognize import holds_triples
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.outside import runs
from headrace.graph.saved.names import Names

FEW = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little memory that everything is cut into pieces of 7."""
    monkeypatch.setattr(Budget, "items", lambda self, bytes_each: 7)
    monkeypatch.setattr(Budget, "block", 24)
    monkeypatch.setattr(Budget, "table", 0)
    monkeypatch.setattr(runs, "_LEAST_CHUNK", 3)


def run(output: Path, *edges: Path, **options: object) -> hr.Dataset:
    ingest(IngestOptions(edges=edges, output=output, memory="64GiB", threads=2, **options))  # type: ignore[arg-type]
    return hr.open(output, verify=True)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


events = st.integers(2, 9).flatmap(
    lambda nodes: st.lists(
        st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1), st.integers(-40, 40)), min_size=1, max_size=50
    )
)


@pytest.mark.parametrize("kind", ["whole", "real", "date"])
@given(rows=events, undirected=st.booleans(), squeezed=st.booleans())
@FEW
def test_edges_are_put_in_order_of_time(tmp_path_factory, request, kind, rows, undirected, squeezed) -> None:
    folder = tmp_path_factory.mktemp("timed")
    src, dst, when = np.array(rows, np.int64).T
    times = when * 0.25 if kind == "real" else when * 86400 if kind == "date" else when
    shown = [str(np.datetime64("1970-01-01") + t) for t in when] if kind == "date" else [str(t) for t in times]
    lines = [f"{s},{d},{t},{number},{-number}" for number, (s, d, t) in enumerate(zip(src, dst, shown, strict=True))]
    edges = write(folder / "edges.csv", "\n".join(["a,b,when,f,g", *lines]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        if squeezed:
            patch.setattr(Budget, "items", lambda self, bytes_each: 7)
            patch.setattr(Budget, "block", 24)
            patch.setattr(Budget, "table", 0)
        data = run(folder / "out", edges, time_column="when", edge_feature_columns=("f", "g"), undirected=undirected)
    ids, dense = np.unique([src, dst], return_inverse=True)
    dense = dense.reshape(2, -1)
    order = np.argsort(when, kind="stable")
    wanted = hr.Graph.from_edges(dense[0][order], dense[1][order], len(ids), time=times[order], edge_id=True, undirected=undirected)
    for name in ("indptr", "indices", "time", "edge_id"):
        assert torch.equal(getattr(data.graph, name), getattr(wanted, name)), name
    assert data.graph.is_sorted_by_time()
    assert data.extra["edge_features"].tolist() == [[float(at), -float(at)] for at in order]
    assert data.info.get("time_unit") == ("seconds since 1970" if kind == "date" else None)


def test_times_beyond_a_table_and_negative_ones_sort(tmp_path) -> None:
    times = [2**62, -(2**62), 0, 5, -(2**63), 2**63 - 1]
    edges = write(tmp_path / "e.csv", "".join(f"0,1,{t}\n" for t in times))
    assert run(tmp_path / "out", edges, time_column=2).graph.time.tolist() == sorted(times)
    floats = ["1e300", "-2.5", "-1e300", "-0.0", "0.0", "3"]
    edges = write(tmp_path / "f.csv", "".join(f"0,1,{t}\n" for t in floats))
    assert run(tmp_path / "out", edges, time_column=2).graph.time.tolist() == [-1e300, -2.5, 0.0, 0.0, 3.0, 1e300]


def test_triples_equal_those_of_the_file(tmp_path, tight) -> None:
    generator = np.random.default_rng(0)
    names, kinds = [f"n{i:02}" for i in range(20)], ["likes", "knows", "is in"]
    rows = [(names[h], kinds[r], names[t]) for h, r, t in generator.integers(0, [20, 3, 20], (60, 3))]
    edges = write(tmp_path / "kg.tsv", "".join("\t".join(row) + "\n" for row in rows))
    data = run(tmp_path / "out", edges, header="no")  # nobody said that these are triples
    nodes, relations = sorted({name for h, _, t in rows for name in (h, t)}), sorted(kinds)
    wanted = [[nodes.index(h), relations.index(r), nodes.index(t)] for h, r, t in rows]
    assert data.extra["triples"].tolist() == wanted
    assert Names.of_relations(data, 3).of(range(3)) == relations
    assert data.info["num_relations"] == 3
    assert torch.equal(data.graph.edge_id.sort().values, torch.arange(60))
    assert data.graph.num_nodes == len(nodes)


@pytest.mark.parametrize(
    ("rows", "triples"),
    [
        ([("ada", "knows", "bob"), ("bob", "likes", "cid")], True),
        ([("1", "knows", "2"), ("2", "likes", "3"), ("3", "likes", "1")], True),
        ([("1", "7", "2"), ("2", "8", "3")], False),  # may be weights
        ([("ada", "bob", "friend"), ("bob", "cid", "friend")], False),
        ([("ada", "milk", "2"), ("bob", "bread", "1")], False),
        ([("ada", "0.5", "bob")], False),
        ([], False),
    ],
)
def test_triples_are_told_from_other_rows(rows, triples) -> None:
    assert holds_triples(rows) is triples


def test_relation_column_by_name_leaves_the_ends(tmp_path) -> None:
    edges = write(tmp_path / "e.csv", "when,who,what,whom\n3,1,9,2\n1,2,4,5\n")
    data = run(tmp_path / "out", edges, relation_column="what", time_column="when")
    assert data.extra["triples"].tolist() == [[1, 0, 2], [0, 1, 1]]
    assert data.extra["triples_time"].tolist() == [1, 3]
    pq.write_table(pa.table({"head": [1, 2], "relation": ["a", "b"], "tail": [2, 3]}), tmp_path / "e.parquet")
    assert run(tmp_path / "out", tmp_path / "e.parquet").extra["triples"].tolist() == [[0, 0, 1], [1, 1, 2]]


def test_held_out_triples_have_arrays_of_their_own(tmp_path) -> None:
    parts = {
        name: write(tmp_path / f"{name}.txt", text) for name, text in (("t", "a r b\nb r c\n"), ("v", "a s c\n"), ("x", "d r a\n"))
    }
    data = run(tmp_path / "out", parts["t"], val_triples=parts["v"], test_triples=parts["x"], header="no", relation_column=1)
    assert {name: data.extra[name].tolist() for name in ("train", "val", "test")} == {
        "train": [[0, 0, 1], [1, 0, 2]],
        "val": [[0, 1, 2]],
        "test": [[3, 0, 0]],
    }
    assert (data.num_nodes, data.num_edges) == (4, 2)  # the graph has the edges to train on alone
    assert hr.train.link(data, hr.train.LinkOptions(dim=4, epochs=1, negatives=4)).test["mrr"] > 0


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b,t\n1,2,soon\n", {"time_column": "t"}, "'soon', which is no time: it must hold numbers, or dates"),
        ("a,b,t\n1,2,3\n1,2,4\n2,3,x\n", {"time_column": "t"}, "e.csv:4: the time is not an integer"),
        ("a,b,t\n1,2,2024-01-01\n1,3,2024-01-02\n2,3,1\n", {"time_column": "t"}, "e.csv:4: the time is no date or time such as"),
        ("a,b,t\n1,2,0.5\n2,3,nan\n", {"time_column": "t"}, "e.csv:3: the time is not a finite number"),
        ("a,b,t\n1,2,0.5\n", {"time_column": "when"}, "time_column: .* has no column 'when'; its columns are a, b, t"),
        ("a,b,f\n1,2,x\n", {"edge_feature_columns": ("f",)}, "e.csv:2: the feature is not a finite number"),
        ("a,b,f\n1,2,3\n", {"edge_feature_columns": "f"}, "give a sequence of names"),
        ("a,b,f\n1,2,3\n", {"time_column": "f", "weight_column": "f"}, "must be different columns"),
        ("a,b\n1,2\n", {"relation_column": "b"}, "dst_column: .* has 2 columns, and none is number 2"),
        ("a,b\n1,2\n", {"val_triples": "e.csv"}, "val_triples and test_triples are for triples: say relation_column"),
        ("a,b\n1,2\n", {"nodes": ("n.csv", "m.csv")}, "nodes are in several files"),
    ],
)
def test_bad_columns_are_named(tmp_path, monkeypatch, text, options, message) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IngestError, match=message):
        run(tmp_path / "out", write(Path("e.csv"), text), **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.csv"]


def test_npy_edges_have_no_other_columns(tmp_path) -> None:
    np.save(tmp_path / "e.npy", np.zeros((2, 3), np.int64))
    for name in ("relation_column", "time_column", "weight_column"):
        with pytest.raises(IngestError, match=f"{name}: a .npy edge list has only sources and targets"):
            run(tmp_path / "out", tmp_path / "e.npy", **{name: "x"})


def test_what_is_understood_is_told_before_the_work_begins(tmp_path) -> None:
    edges = write(tmp_path / "e.csv", "from,to,when,note\n1,2,2024-05-31,x\n1,3,2024-05-30,y\nbad\n")
    told: list[list[Understood]] = []
    with pytest.raises(IngestError, match="1 column where 4 were expected"):
        ingest(IngestOptions(edges=(edges,), output=tmp_path / "out", time_column="when", memory="64GiB"), understood=told.append)
    ((file,),) = told
    assert file.columns == (
        ("from", "source, integers"),
        ("to", "target, integers"),
        ("when", "time, dates, kept as seconds since 1970"),
        ("note", ""),
    )
    assert file.rows[0] == ("1", "2", "2024-05-31", "x")
    assert file.notes == ("the first line names the columns; between columns: ,", "not read: note")


def test_the_command_shows_a_table_and_says_what_was_recognised(tmp_path) -> None:
    edges = write(tmp_path / "kg.csv", "ada,knows,[bob]\n[bob],likes,cid\n")
    done = CliRunner().invoke(app, ["import", str(edges), str(tmp_path / "out"), "--header", "no", "--memory", "64GiB"])
    assert done.exit_code == 0, done.output
    for word in ("head, texts", "relation, texts", "[bob]", "triples (head, relation, tail)", "say --dst-column"):
        assert word in " ".join(done.stderr.split()), word
    assert "relations            2" in done.stdout


@pytest.mark.slow
def test_unsorted_times_are_sorted_within_the_memory(tmp_path) -> None:
    """In a process of its own, whose peak counts."""
    generator = np.random.default_rng(0)
    count = 2_000_000
    table = {"src": generator.integers(0, 300_000, count), "dst": generator.integers(0, 300_000, count)}
    table |= {"relation": generator.integers(0, 20, count), "time": generator.integers(0, 2**50, count)}
    pq.write_table(pa.table(table | {"f": generator.random(count)}), tmp_path / "e.parquet")
    options = ["--time-column", "time", "--relation-column", "relation", "--edge-feature-columns", "f", "--undirected", "--json"]
    command = [sys.executable, "-m", "headrace", "import", "e.parquet", "out", "--memory", "450MiB", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["put_in_order"]
    assert report["peak_memory"] <= 450 << 20
    assert hr.open(tmp_path / "out").graph.is_sorted_by_time()
