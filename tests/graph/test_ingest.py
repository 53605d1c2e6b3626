import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import headrace as hr
from headrace.cli.datasets.import_ import import_command
from headrace.graph.ingest import IngestError, IngestOptions, ingest, parse_size
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.outside import external, runs
from headrace.graph.ingest.outside.scratch import require_disk

ARRAYS = ("indptr", "indices", "weight", "edge_id")
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little memory that everything is cut: blocks of a few lines, groups of 7 edges, ranges of 7 entries, no id table."""
    monkeypatch.setattr(Budget, "items", lambda self, bytes_each: 7)
    monkeypatch.setattr(Budget, "block", 24)
    monkeypatch.setattr(Budget, "table", 0)
    monkeypatch.setattr(runs, "_LEAST_CHUNK", 3)


def run(output: Path, *edges: Path, **options: object) -> hr.Dataset:
    ingest(IngestOptions(edges=edges, output=output, memory="64GiB", threads=2, **options))  # type: ignore[arg-type]
    return hr.open(output, verify=True)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def assert_same_graph(found: hr.Graph, wanted: hr.Graph) -> None:
    for name in ARRAYS:
        a, b = getattr(found, name), getattr(wanted, name)
        assert (a is None) == (b is None), name
        if a is not None:
            assert a.dtype == b.dtype, name
            assert torch.equal(a, b), name


def write_edges(folder: Path, kind: str, src: np.ndarray, dst: np.ndarray, weight: np.ndarray | None) -> Path:
    path = folder / f"edges.{kind}"
    if kind == "parquet":
        columns = {"src": src, "dst": dst} | ({} if weight is None else {"weight": weight})
        pq.write_table(pa.table(columns), path, row_group_size=11)
    elif kind == "npy":
        np.save(path, np.stack([src, dst], axis=len(src) % 2))
    else:
        delimiter = "," if "csv" in kind else "\t" if "tsv" in kind else " "
        rows = [["src", "dst"] + ["weight"] * (weight is not None)]
        rows += [[str(v) for v in row] for row in zip(*([src, dst] if weight is None else [src, dst, weight]), strict=True)]
        content = "".join(delimiter.join(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    return path


edge_lists = st.integers(1, 12).flatmap(
    lambda nodes: st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), min_size=1, max_size=60)
)
ways = st.fixed_dictionaries(
    {
        "undirected": st.booleans(),
        "deduplicate": st.booleans(),
        "self_loops": st.sampled_from(["keep", "add", "drop"]),
        "edge_ids": st.booleans(),
    }
)


def check_equals_from_edges(folder: Path, kind: str, pairs: list[tuple[int, int]], way: dict, weighted: bool, spread: int) -> None:
    raw = np.array(pairs, np.int64).T * spread - spread
    weight = np.arange(len(pairs), dtype=np.float32) / 7 if weighted and kind != "npy" else None
    edges = write_edges(folder, kind, raw[0], raw[1], weight)
    data = run(folder / "out", edges, weight_column=None if weight is None else "weight", **way)
    ids, dense = np.unique(raw, return_inverse=True)
    src, dst = dense.reshape(raw.shape)
    options = {name: way[name] for name in ("undirected", "deduplicate", "self_loops")}
    wanted = hr.Graph.from_edges(src, dst, len(ids), weight=weight, edge_id=way["edge_ids"] or None, **options)
    assert_same_graph(data.graph, wanted)
    assert data.extra["id"].tolist() == ids.tolist()
    table = pq.read_table(hr.open(folder / "out").id_map)
    assert table.column("id").to_pylist() == ids.tolist()
    assert table.column("node").to_pylist() == list(range(len(ids)))
    assert sorted(p.name for p in folder.iterdir() if p.name != edges.name) == ["out"]


@pytest.mark.parametrize("kind", ["csv", "tsv", "txt", "csv.gz", "parquet", "npy"])
@given(pairs=edge_lists, way=ways, weighted=st.booleans(), spread=st.sampled_from([1, 3, 2**55]))
@settings(MANY, max_examples=15)
def test_import_equals_from_edges(tmp_path_factory, kind, pairs, way, weighted, spread) -> None:
    check_equals_from_edges(tmp_path_factory.mktemp("import"), kind, pairs, way, weighted, spread)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy"])
@given(pairs=edge_lists, way=ways, weighted=st.booleans(), spread=st.sampled_from([1, 2**55]))
@settings(MANY, max_examples=40)
def test_import_cut_in_tiny_pieces_equals_from_edges(tmp_path_factory, tight, kind, pairs, way, weighted, spread) -> None:
    check_equals_from_edges(tmp_path_factory.mktemp("import"), kind, pairs, way, weighted, spread)


@pytest.mark.parametrize("self_loops", ["keep", "add", "drop"])
@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize("looped", [False, True])
def test_a_row_longer_than_the_memory_is_streamed(tmp_path: Path, tight, self_loops, deduplicate, looped) -> None:
    sources = np.random.default_rng(0).integers(0, 20, 100)
    sources[sources == 5] = 5 if looped else 6
    pairs = [(int(source), 5) for source in sources] + [(5, 3), (5, 5)][: 1 + looped]
    for undirected in (False, True):
        way = {"undirected": undirected, "deduplicate": deduplicate, "self_loops": self_loops, "edge_ids": True}
        check_equals_from_edges(tmp_path, "csv", pairs, way, True, 1)


@given(pairs=edge_lists, way=ways)
@settings(MANY, max_examples=25)
def test_wide_ids_and_positions_hold_the_same_values(tmp_path_factory, tight, pairs, way) -> None:
    folder = tmp_path_factory.mktemp("wide")
    src, dst = np.array(pairs).T
    edges = write_edges(folder, "npy", src, dst, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external, "_INT32", 0)  # as if there were more nodes and edges than 32 bits can number
        data = run(folder / "out", edges, num_nodes=12, **way)
    options = {name: way[name] for name in ("undirected", "deduplicate", "self_loops")}
    wanted = hr.Graph.from_edges(src, dst, 12, edge_id=way["edge_ids"] or None, **options)
    assert data.graph.indices.dtype == torch.int64
    assert data.graph.indptr.tolist() == wanted.indptr.tolist()
    assert data.graph.indices.tolist() == wanted.indices.tolist()
    if data.graph.edge_id is not None and wanted.edge_id is not None:
        assert data.graph.edge_id.tolist() == wanted.edge_id.tolist()


texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zs", "Zl", "Zp"), exclude_characters=',"#'), min_size=1)


@given(pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=40))
@MANY
def test_string_ids_are_numbered_by_their_bytes(tmp_path_factory, tight, pairs) -> None:
    folder = tmp_path_factory.mktemp("strings")
    edges = write(folder / "edges.csv", "src,dst\n" + "".join(f"{a},{b}\n" for a, b in pairs))
    data = run(folder / "out", edges, ids="string", edge_ids=True)
    names = sorted({name for pair in pairs for name in pair}, key=str.encode)
    assert pq.read_table(hr.open(folder / "out").id_map).column("id").to_pylist() == names
    src, dst = ([names.index(pair[at]) for pair in pairs] for at in (0, 1))
    assert_same_graph(data.graph, hr.Graph.from_edges(src, dst, len(names), edge_id=True))


def test_string_ids_from_parquet_dictionaries_and_quoted_text(tmp_path: Path) -> None:
    column = pa.array(["b", "a", "b"]).dictionary_encode()
    pq.write_table(pa.table({"x": [1, 2, 3], "to": column, "from": pa.array(["a", "c", "c"])}), tmp_path / "e.parquet")
    one = run(tmp_path / "one", tmp_path / "e.parquet", src_column="from", dst_column="to")
    text = write(tmp_path / "e.csv", 'x,to,from\n1,"b",a\n2,a,"c"\n3,"b","c"\n')
    two = run(tmp_path / "two", text, src_column="from", dst_column=1)
    for data in (one, two):
        assert_same_graph(data.graph, hr.Graph.from_edges([0, 2, 2], [1, 0, 1]))


def test_several_files_are_one_list(tmp_path: Path) -> None:
    parts = [
        write(tmp_path / "a.csv", "src,dst\n0,1\n"),
        write(tmp_path / "b.csv", ""),
        write(tmp_path / "c.csv", "src,dst\n1,2\n0,2\n"),
    ]
    assert_same_graph(run(tmp_path / "out", *parts).graph, hr.Graph.from_edges([0, 1, 0], [1, 2, 2]))


@pytest.mark.parametrize(
    "content",
    [
        "0,1\n1,2\n",
        "0,1\r\n1,2\r\n",
        "0,1\n1,2",
        "\ufeff0,1\n1,2\n",
        "\ufeffsrc,dst\n0,1\n1,2\n",
        "# a graph\n#\n\nsrc,dst\n0,1\n\n\n1,2\n\n",
        "0;1\n1;2\n",
        "0\t1\n1\t2\n",
        "  0   1\n1 2  \n",
        "0 , 1\n 1,2\n",
        "a,b\n+0,1\n1,002\n",
        '"a","b"\n"0","1"\n1,"2"\n',
    ],
)
def test_text_in_all_its_dialects(tmp_path: Path, content: str) -> None:
    edges = write(tmp_path / "e.txt", content)
    assert_same_graph(run(tmp_path / "out", edges, ids="int").graph, hr.Graph.from_edges([0, 1], [1, 2]))


BAD = [
    ("0,1\n1\n", 2, "1 column where 2 were expected ('1')"),
    ("0,1\n\n\n1,2,3\n", 4, "3 columns where 2 were expected ('1,2,3')"),
    ("src,dst\r\n0,1\r\n\r\nx,2\r\n", 4, "the source id is not an integer ('x')"),
    ("# one\n# two\nsrc,dst\n0,1\n0,\n", 5, "the target id is empty ('')"),
    ("0,1\n1,2.5\n", 2, "the target id is not an integer ('2.5')"),
    ("0,1\n1,99999999999999999999\n", 2, "the target id does not fit 64 bits ('99999999999999999999')"),
    ('0,1\n"1,2\n3,4\n', 2, "1 column where 2 were expected ('\"1,2')"),
    ("0,1\n1,2\r3,4\n", 2, "1 column where 2 were expected ('1,2\\r3,4')"),
    ("0,1\n1,2", None, ""),
    ("0,1\n1,é", 2, "the target id is not an integer ('é')"),
    (b"0,1\n1,\xff\n", 2, "the target id is not an integer ('�')"),
]


@pytest.mark.parametrize("squeeze", [False, True])
@pytest.mark.parametrize(("content", "line", "problem"), BAD)
def test_bad_rows_are_named_by_file_and_line(tmp_path: Path, monkeypatch, request, squeeze, content, line, problem) -> None:
    if squeeze:
        request.getfixturevalue("tight")
    edges = write(tmp_path / "e.csv", content)
    if line is None:
        run(tmp_path / "out", edges, ids="int")
        return
    with pytest.raises(IngestError) as error:
        run(tmp_path / "out", edges, ids="int")
    assert str(error.value).startswith(f"{edges}:{line}: {problem}")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e.csv"]
    good = ingest(IngestOptions(edges=(edges,), output=tmp_path / "out", ids="int", skip_bad=True, memory="64GiB"))
    assert good.bad_rows == 1
    assert good.bad_examples[0].startswith(f"{edges}:{line}: ")


lines = st.sampled_from(["1,2", "3,4", " 5 ,6", "", "   ", "7", "8,9,10", "x,1", "1,", ",", '"1,2', '"1",2', "1,2\r"])


@given(body=st.lists(lines, max_size=25), ending=st.sampled_from(["", "\n", "\r\n", "\n\n"]))
@settings(MANY, max_examples=150)
def test_line_numbers_stay_exact_after_bad_and_blank_lines(tmp_path_factory, tight, body, ending) -> None:
    folder = tmp_path_factory.mktemp("lines")
    edges = write(folder / "e.csv", "\n".join(["src,dst", "1,1", *body]) + ending)
    good = {"1,2": (1, 2), "3,4": (3, 4), " 5 ,6": (5, 6), '"1",2': (1, 2), "1,2\r": (1, 2)}
    rows = [(1, 1)] + [good[text] for text in body if text in good]
    bad = [f"{edges}:{at}" for at, text in enumerate(body, 3) if text.strip() and text not in good]
    report = ingest(IngestOptions(edges=(edges,), output=folder / "out", ids="int", skip_bad=True, memory="64GiB"))
    assert (report.rows, report.bad_rows) == (len(rows), len(bad))
    assert [example.split(": ")[0] for example in report.bad_examples] == bad[:10]
    ids, dense = np.unique(np.array(rows).T, return_inverse=True)
    src, dst = dense.reshape(2, -1)
    assert_same_graph(hr.open(folder / "out").graph, hr.Graph.from_edges(src, dst, len(ids)))


def test_bad_weights_and_ids_outside_num_nodes(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", "s,d,w\n0,1,1.5\n1,2,heavy\n2,0,nan\n2,1,\n3,1,1\n-1,1,1\n1,0,2e0\n")
    report = ingest(
        IngestOptions(edges=(edges,), output=tmp_path / "out", weight_column="w", num_nodes=3, skip_bad=True, memory="64GiB")
    )
    assert (report.num_nodes, report.rows, report.bad_rows) == (3, 2, 5)
    assert [example.removeprefix(f"{edges}:") for example in report.bad_examples] == [
        "3: the weight is not a finite number ('heavy')",
        "4: the weight is not a finite number ('nan')",
        "5: the weight is empty ('')",
        "6: the source id is outside 0..2 ('3')",
        "7: the source id is outside 0..2 ('-1')",
    ]
    data = hr.open(tmp_path / "out")
    assert data.graph.weight is not None
    assert data.graph.weight.tolist() == [2.0, 1.5]
    assert hr.open(tmp_path / "out").id_map is None


def test_bad_rows_of_parquet_and_npy_are_named_by_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([1, None, 3]), "b": [1, 2, 3]}), tmp_path / "e.parquet")
    with pytest.raises(IngestError, match=r"e.parquet: row 1: the source id is empty"):
        run(tmp_path / "out", tmp_path / "e.parquet")
    np.save(tmp_path / "e.npy", np.array([[0, 1, 2], [1, 2, 7]], np.uint16))
    with pytest.raises(IngestError, match=r"e.npy: edge 2: the target id is outside 0\.\.6 \('7'\)"):
        run(tmp_path / "out", tmp_path / "e.npy", num_nodes=7)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("e.csv", "", {}, "the file is empty: there are no edges"),
        ("e.csv", "\n\n# nothing\n", {}, "the file is empty: there are no edges"),
        ("e.csv", "src,dst\n", {}, "there are no edges"),
        ("e.csv", "src,dst\nx\n", {"skip_bad": True}, "all 1 were bad"),
        ("e.xyz", "0,1\n", {}, "what kind of file is this"),
        ("e.csv", "lonely\n", {"header": "no"}, "dst_column: .*e.csv has 1 column, and none is number 1"),
        ("e.csv", "ann,bob\ncid,dan\n", {}, "is the first line a header"),
        ("e.csv", "a,b\n1,2\n", {"src_column": "c"}, "src_column: .*has no column 'c'; its columns are a, b"),
        ("e.csv", "1,2\n", {"ids": "words"}, "ids is 'words': choose one of auto, int, string"),
        ("e.csv", "1,2\n", {"ids": "string", "num_nodes": 3}, "need integer ids"),
        ("e.csv", "1,2\n", {"label_column": "y"}, "label_column is given without a node table"),
        ("e.csv", "1,2\n3,x\n4,5\n", {}, r"e.csv:2: the target id is not an integer \('x'\): if ids are texts, say ids string"),
        ("e.parquet", "PAR1", {}, "is not a Parquet file"),
        ("e.npy", "nothing", {}, "is not a usable .npy file"),
        ("e.csv.gz", "nothing", {}, "cannot be read"),
    ],
)
def test_errors_say_what_to_do(tmp_path: Path, name, content, options, message) -> None:
    edges = write(tmp_path / name, content)
    with pytest.raises(IngestError, match=message):
        run(tmp_path / "out", edges, **options)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_too_little_memory_or_disk_is_refused_before_the_work(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", "0,1\n")
    with pytest.raises(IngestError, match=r"memory=64.0 MiB is too small.*the least that works is \d+MiB"):
        ingest(IngestOptions(edges=(edges,), output=tmp_path / "out", memory="64MiB"))
    with pytest.raises(IngestError, match=r"needs about 2.0 GiB of disk in .*, and 1.0 GiB are free"):
        require_disk(tmp_path / "scratch", 2 << 30, free=1 << 30)
    assert parse_size("1.5GiB") == 3 << 29
    with pytest.raises(IngestError, match="'lots' is not a size"):
        parse_size("lots")


NODES = "name,kind,part,a,b\nd,cat,test,1,2\na,dog,train,3,4\nz,,valid,5,6\nb,cat,,7,8\n"


@pytest.mark.parametrize("squeeze", [False, True])
def test_node_table_joins_by_id(tmp_path: Path, request, squeeze) -> None:
    if squeeze:
        request.getfixturevalue("tight")
    edges = write(tmp_path / "e.csv", "src,dst\na,b\nb,c\n")
    nodes = write(tmp_path / "n.csv", NODES)
    table = {"nodes": nodes, "label_column": "kind", "split_column": "part", "feature_columns": ("b", "a")}
    report = ingest(IngestOptions(edges=(edges,), output=tmp_path / "out", memory="64GiB", **table))  # type: ignore[arg-type]
    data = hr.open(tmp_path / "out", verify=True)
    assert pq.read_table(hr.open(tmp_path / "out").id_map).column("id").to_pylist() == ["a", "b", "c", "d", "z"]
    assert report.nodes_without_row == 1
    assert data.x is not None
    assert data.x.tolist() == [[4, 3], [8, 7], [0, 0], [2, 1], [6, 5]]
    assert data.y is not None
    assert data.y.tolist() == [1, 0, -1, 0, -1]
    assert data.info["class_names"] == ["cat", "dog"]
    assert {name: ids.tolist() for name, ids in data.splits.items()} == {"train": [0], "val": [4], "test": [3]}


def test_node_table_in_parquet_with_a_list_column_and_integer_labels(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", "10,20\n20,30\n")
    columns = {"id": [30, 10], "y": pa.array([2.0, None]), "x": pa.array([[1.0, 2.0], [3.0, 4.0]])}
    pq.write_table(pa.table(columns), tmp_path / "n.parquet")
    data = run(tmp_path / "out", edges, nodes=tmp_path / "n.parquet", label_column="y", feature_columns=("x",))
    assert data.y is not None
    assert data.y.tolist() == [-1, -1, 2]
    assert data.x is not None
    assert data.x.tolist() == [[3, 4], [0, 0], [1, 2]]


@pytest.mark.parametrize("squeeze", [False, True])
def test_bad_node_rows(tmp_path: Path, request, squeeze) -> None:
    if squeeze:
        request.getfixturevalue("tight")
    edges = write(tmp_path / "e.csv", "0,1\n")
    twice = "".join(f"1,train,{n}\n" for n in range(20))
    nodes = write(tmp_path / "n.csv", f"id,part,x\n0,train,1\n\n1,later,2\n0,test,3\n1,test,many\n{twice}")
    table = {"nodes": nodes, "split_column": "part", "feature_columns": ("x",)}
    report = ingest(IngestOptions(edges=(edges,), output=tmp_path / "out", memory="64GiB", skip_bad=True, **table))  # type: ignore[arg-type]
    assert report.bad_rows == 3 + 19
    shown = [example.removeprefix(f"{nodes}:") for example in report.bad_examples]
    assert "4: the split is not train, val or test ('later')" in shown
    assert "6: the feature x is not a number ('many')" in shown
    assert f"5: the node has a row already, at {nodes}:2" in shown
    assert hr.open(tmp_path / "out").x.tolist() == [[1], [0]]  # type: ignore[union-attr]
    with pytest.raises(IngestError, match=r"n.csv:4: the split"):
        run(tmp_path / "out", edges, **table)


def test_rows_by_position_use_ids_as_they_are(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", "0,3\n3,1\n")
    x, y = np.arange(10, dtype=np.float64).reshape(5, 2), np.array([0, 1, -1, 1, 0], np.int8)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    np.save(tmp_path / "s.npy", np.array(["train", "val", "test", "train", ""]))
    rows = {"features": tmp_path / "x.npy", "labels": tmp_path / "y.npy", "split": tmp_path / "s.npy"}
    data = run(tmp_path / "out", edges, **rows)
    assert_same_graph(data.graph, hr.Graph.from_edges([0, 3], [3, 1], 5))
    assert data.x is not None
    assert data.y is not None
    assert data.x.tolist() == x.tolist()
    assert data.y.tolist() == y.tolist()
    assert {name: ids.tolist() for name, ids in data.splits.items()} == {"train": [0, 3], "val": [1], "test": [2]}
    assert "id" not in data.extra
    with pytest.raises(IngestError, match=r"features: .*x.npy has 5 rows, but num_nodes says 4 nodes"):
        run(tmp_path / "out", edges, num_nodes=4, **rows)


@pytest.mark.parametrize("step", ["reading edges", "sorting edges", "writing rows", "finishing"])
@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failed_import_leaves_the_old_dataset_and_no_files(tmp_path: Path, step, failure) -> None:
    edges = write(tmp_path / "e.csv", "0,1\n1,2\n")
    run(tmp_path / "out", edges)
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}

    def fail(what: str, done: int, total: int | None) -> None:
        if what == step:
            raise failure

    edges.write_text("5,6\n")
    for output in ("out", "new/deep"):
        with pytest.raises(failure):
            ingest(IngestOptions(edges=(edges,), output=tmp_path / output, memory="64GiB"), fail)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e.csv", "out"]
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before
    assert_same_graph(hr.open(tmp_path / "out", verify=True).graph, hr.Graph.from_edges([0, 1], [1, 2]))


def test_import_over_a_dataset_replaces_it_with_its_id_map(tmp_path: Path) -> None:
    run(tmp_path / "out", write(tmp_path / "e.csv", "src,dst\na,b\n"))
    run(tmp_path / "out", write(tmp_path / "e.csv", "src,dst\nc,d\nd,e\n"))
    assert pq.read_table(hr.open(tmp_path / "out").id_map).column("id").to_pylist() == ["c", "d", "e"]
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 1
    file = hr.open(tmp_path / "out").id_map
    assert file is not None
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="checksum"):
        hr.open(tmp_path / "out", verify=True)


def test_files_of_a_killed_import_are_removed_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / ".out.import-killed"
    left.mkdir()
    write(left / "lock", "")
    write(left / "ids", "spool")
    run(tmp_path / "out", write(tmp_path / "e.csv", "0,1\n"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e.csv", "out"]


def command(*arguments: object) -> typer.testing.Result:
    app = typer.Typer()
    app.command("import")(import_command)
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_the_command_prints_a_summary_json_or_one_line_of_error(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", "src,dst,w\n0,1,1\n1,x,2\n")
    arguments = [edges, tmp_path / "out", "--ids", "int", "--weight-column", "w", "--memory", "64GiB"]
    failed = command(*arguments)
    assert failed.exit_code == 2
    said = "the target id is not an integer ('x'): mend the row, or leave such rows out by --skip-bad"
    assert failed.stderr.splitlines()[-1] == f"headrace: {edges}:3: {said}"
    assert not (tmp_path / "out").exists()
    summary = command(*arguments, "--skip-bad")
    assert summary.exit_code == 0, summary.output
    assert "bad rows skipped     1" in summary.stdout
    report = json.loads(command(*arguments, "--skip-bad", "--json").stdout)
    assert (report["num_nodes"], report["num_edges"], report["bad_rows"]) == (2, 1, 1)
    assert "--num-nodes is -1" in command(*arguments, "--num-nodes", -1).stderr


CHILD = """
import json, sys
from dataclasses import asdict
from headrace.graph.ingest import IngestOptions, ingest
options = json.loads(sys.argv[1])
print("ready", flush=True)
print(json.dumps(asdict(ingest(IngestOptions(**options))), default=str))
"""


def random_edges(path: Path, count: int, nodes: int, hub: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Writes [2, count] edges over ids 0 to nodes - 1, every one of them there, to a .npy file; a share of them into node 5."""
    random = np.random.default_rng(0)
    src, dst = random.integers(0, nodes, (2, count), dtype=np.int32)
    src[:nodes] = np.arange(nodes)
    dst[random.random(count) < hub] = 5
    np.save(path, np.stack([src, dst]))
    return src, dst


@pytest.mark.parametrize(
    "way", [{"undirected": True}, pytest.param({"self_loops": "add", "edge_ids": True}, marks=pytest.mark.slow)]
)
def test_memory_stays_within_the_budget_for_edges_larger_than_it(tmp_path: Path, way) -> None:
    budget = 400 << 20
    src, dst = random_edges(tmp_path / "e.npy", 12_000_000, 1_000_000, hub=0.5)
    assert src.nbytes + dst.nbytes + 2 * 8 * len(src) > (budget - (270 << 20))  # more than is left beside Python and torch
    options = {"edges": [str(tmp_path / "e.npy")], "output": str(tmp_path / "out"), "memory": budget} | way
    done = subprocess.run([sys.executable, "-c", CHILD, json.dumps(options)], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["peak_memory"] < budget
    keep_ids = way.pop("edge_ids", None)
    assert_same_graph(hr.open(tmp_path / "out").graph, hr.Graph.from_edges(src, dst, 1_000_000, edge_id=keep_ids, **way))


def test_saving_an_imported_dataset_keeps_its_id_map(tmp_path):
    (tmp_path / "edges.csv").write_text("b,a\nc,b\n")
    ingest(IngestOptions(edges=(tmp_path / "edges.csv",), output=tmp_path / "out", ids="string", header="no"))
    data = hr.open(tmp_path / "out")
    data.save(tmp_path / "copy")
    data.save(tmp_path / "out")
    for folder in ("copy", "out"):
        assert pq.read_table(hr.open(tmp_path / folder, verify=True).id_map).column("id").to_pylist() == ["a", "b", "c"]


@pytest.mark.slow
@pytest.mark.parametrize("spread", [1, 1 << 40])
def test_memory_stays_within_the_budget_for_a_large_csv(tmp_path: Path, spread) -> None:
    import pyarrow.csv as pacsv

    src, dst = random_edges(tmp_path / "e.npy", 60_000_000, 8_000_000)
    with pacsv.CSVWriter(tmp_path / "e.csv", pa.schema([("src", pa.int64()), ("dst", pa.int64())])) as file:
        for at in range(0, len(src), 1 << 20):
            columns = [pa.array(ids[at : at + (1 << 20)].astype(np.int64) * spread) for ids in (src, dst)]
            file.write_table(pa.table(columns, names=["src", "dst"]))
    (tmp_path / "e.npy").unlink()
    budget = 600 << 20
    options = {"edges": [str(tmp_path / "e.csv")], "output": str(tmp_path / "out"), "memory": budget}
    done = subprocess.run([sys.executable, "-c", CHILD, json.dumps(options)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["peak_memory"] < budget
    assert_same_graph(hr.open(tmp_path / "out").graph, hr.Graph.from_edges(src, dst, 8_000_000))


@pytest.mark.parametrize(("kind", "wait"), [("csv", 0.02), pytest.param("npy", 0.5, marks=pytest.mark.slow)])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, kind, wait) -> None:
    file = tmp_path / f"e.{kind}"
    if kind == "npy":
        random_edges(file, 12_000_000, 1_000_000)
    else:
        file.write_bytes(b"src,dst\n" + b"1234567,7654321\n" * 8_000_000)
    options = {"edges": [str(file)], "output": str(tmp_path / "out"), "memory": "1GiB", "undirected": True}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    while not any(p.name.startswith(".out.import") for p in tmp_path.iterdir()) and child.poll() is None:
        time.sleep(0.005)
    time.sleep(wait)
    os.kill(child.pid, signal.SIGINT)
    output, error = child.communicate(timeout=60)
    if not output:
        assert "KeyboardInterrupt" in error
        assert [p.name for p in tmp_path.iterdir()] == [file.name]
    else:  # it was quicker than the signal
        assert sorted(p.name for p in tmp_path.iterdir()) == [file.name, "out"]
