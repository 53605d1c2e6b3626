"""Several node and edge files make a dataset with types."""

from pathlib import Path

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.graph.ingest import IngestError, IngestOptions, ingest
from headrace.graph.ingest.memory import Budget
from headrace.graph.ingest.outside import runs
from headrace.graph.saved.names import Names
from headrace.graph.typed import join_types, typed_graph

AUTHORS, PAPERS = [f"w{i:02}" for i in range(13)], [7 * i - 3 for i in range(17)]


@pytest.fixture(params=[False, True], ids=["roomy", "tight"])
def files(request, tmp_path, monkeypatch) -> dict[str, str]:
    if request.param:
        monkeypatch.setattr(Budget, "items", lambda self, bytes_each: 7)
        monkeypatch.setattr(Budget, "block", 24)
        monkeypatch.setattr(Budget, "table", 0)
        monkeypatch.setattr(runs, "_LEAST_CHUNK", 3)
    generator = np.random.default_rng(1)
    (tmp_path / "authors.csv").write_text("id,age\n" + "".join(f"{name},{20 + i}\n" for i, name in enumerate(AUTHORS)))
    rows = [f"{p},{i % 5},{'ab'[i % 2]},{('train', 'val', 'test')[i % 3]}\n" for i, p in enumerate(PAPERS)]
    (tmp_path / "papers.csv").write_text("paper,length,field,part\n" + "".join(rows))
    writes = [f"{AUTHORS[a]},{PAPERS[p]}\n" for a, p in generator.integers(0, [13, 17], (40, 2))]
    (tmp_path / "writes.csv").write_text("who,paper\n" + "".join(writes))
    cites = [f"{PAPERS[a]},{PAPERS[b]}\n" for a, b in generator.integers(0, 17, (30, 2))]
    (tmp_path / "cites.csv").write_text("a,b\n" + "".join(cites))
    return {path.stem: str(path) for path in tmp_path.glob("*.csv")}


def imported(files: dict[str, str], **changes: object) -> hr.Dataset:
    options = {
        "edges": (f"author:writes:paper={files['writes']}", f"paper:cites:paper={files['cites']}"),
        "output": Path(files["writes"]).parent / "out",
        "nodes": (f"author={files['authors']}", f"paper={files['papers']}"),
        "label_column": "field",
        "split_column": "part",
        "feature_columns": ("age", "length"),
        "memory": "64GiB",
        "threads": 2,
    } | changes
    ingest(IngestOptions(**options))  # type: ignore[arg-type]
    return hr.open(options["output"], verify=True)  # type: ignore[arg-type]


def test_types_are_those_of_the_files(files) -> None:
    data = imported(files)
    pairs = {}
    for name, source, target in (("writes", AUTHORS, PAPERS), ("cites", PAPERS, PAPERS)):
        lines = [line.split(",") for line in Path(files[name]).read_text().splitlines()[1:]]
        places = [{str(raw): at for at, raw in enumerate(raws)} for raws in (source, target)]
        pairs[name] = tuple(torch.tensor([place[line[at]] for line in lines]) for at, place in enumerate(places))
    wanted = join_types(
        {"author": 13, "paper": 17},
        {("author", "writes", "paper"): pairs["writes"], ("paper", "cites", "paper"): pairs["cites"]},
        x={"author": 20.0 + torch.arange(13).unsqueeze(1), "paper": (torch.arange(17.0) % 5).unsqueeze(1)},
        y={"paper": torch.arange(17) % 2},
        splits={"paper": {name: torch.arange(at, 17, 3) for at, name in enumerate(("train", "val", "test"))}},
    )
    for name in ("x", "y"):
        assert torch.equal(getattr(data, name), getattr(wanted, name)), name
    assert {name: ids.tolist() for name, ids in data.splits.items()} == {name: ids.tolist() for name, ids in wanted.splits.items()}
    for name in ("triples", "node_type"):
        assert torch.equal(data.extra[name], wanted.extra[name]), name
    for name in ("indptr", "indices", "edge_id"):
        assert torch.equal(getattr(data.graph, name), getattr(wanted.graph, name)), name
    assert {name: data.info[name] for name in wanted.info} == wanted.info
    assert str(typed_graph(data)) == "HeteroGraph(author: 13, paper: 17; author-writes-paper: 40, paper-cites-paper: 30)"
    assert Names.of_nodes(data).of([0, 13]) == ["author:w00", "paper:-3"]
    assert Names.of_relations(data, 2).of([0, 1]) == ["author-writes-paper", "paper-cites-paper"]


def test_a_type_without_table_and_features_has_a_column_of_ones(files) -> None:
    data = imported(files, nodes=(f"paper={files['papers']}",), feature_columns=("length",))
    assert data.info["node_types"] == ["paper", "author"]
    assert data.x[:17, 1].tolist() == [0.0] * 17
    assert data.x[17:].tolist() == [[0.0, 1.0]] * (data.num_nodes - 17)
    bare = imported(files, feature_columns=())
    assert bare.x is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label_column": "city"}, "label_column: no node table has a column 'city'"),
        ({"feature_columns": ("age", "size")}, "feature_columns: no node table has a column 'size'"),
        ({"nodes": ("authors.csv",)}, "authors.csv has no type, and edges have: write it as author=authors.csv"),
        ({"nodes": ("paper=papers.csv", "paper=papers.csv")}, "two tables of 'paper'"),
        ({"edges": ("author:writes:paper=writes.csv", "cites.csv")}, "cites.csv has no type, and others have"),
        ({"relation_column": 1}, "the types of the edges are their relations"),
        ({"num_nodes": 5}, "for nodes of one type"),
    ],
)
def test_bad_types_are_sentences(files, monkeypatch, changes, message) -> None:
    monkeypatch.chdir(Path(files["writes"]).parent)
    with pytest.raises(IngestError, match=message):
        imported(files, **changes)
