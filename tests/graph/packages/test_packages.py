"""Datasets of ogb and py-tgb, in folders as these packages lay them out."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.graph.known.packages import tgb
from headrace.graph.typed import typed_graph
from headrace.train.links.data import LinkData


def packed(path: Path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(map(str, np.atleast_1d(row))) + "\n" for row in rows)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    return tmp_path


def write_nodes(folder: Path, *, labels, features=None) -> None:
    packed(folder / "raw/edge.csv.gz", [(0, 1), (1, 2), (3, 2)])
    packed(folder / "raw/num-node-list.csv.gz", [4])
    packed(folder / "raw/num-edge-list.csv.gz", [3])
    if features is not None:
        packed(folder / "raw/node-feat.csv.gz", features)
    packed(folder / "raw/node-label.csv.gz", labels)
    for name, ids in (("train", [0, 3]), ("valid", [1]), ("test", [2])):
        packed(folder / f"split/some_way/{name}.csv.gz", ids)


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-products"])
def test_ogb_nodes(here, name) -> None:
    features = [(0.5, 1), (2, 3), (-1, 0), (4, 4.25)]
    write_nodes(here / "dataset" / name.replace("-", "_"), labels=[1, 0, "nan", 2], features=features)
    data = hr.load(name)
    pairs = {(0, 1), (1, 2), (3, 2)}
    both = pairs | {(b, a) for a, b in pairs}
    assert set(map(tuple, data.graph.edge_index().T.tolist())) == (both if name == "ogbn-products" else pairs)
    assert torch.equal(data.x, torch.tensor(features))
    assert data.y.tolist() == [1, 0, -1, 2]
    assert {split: ids.tolist() for split, ids in data.splits.items()} == {"train": [0, 3], "val": [1], "test": [2]}
    assert data.info["name"] == name
    assert hr.load(name, root=here / "dataset").num_nodes == 4


def test_ogb_several_labels_and_binary_files(here) -> None:
    write_nodes(here / "dataset/ogbn_proteins", labels=[(0, 1), (1, 1), (0, 0), (1, 0)])
    packed(here / "dataset/ogbn_proteins/raw/edge-feat.csv.gz", [(0.5, 1), (1, 1), (2, 1)])
    data = hr.load("ogbn-proteins")
    assert (data.x, data.y.tolist()[0], data.extra["edge_features"].shape) == (None, [False, True], (3, 2))
    folder = here / "dataset/ogbn_papers100M"
    write_nodes(folder, labels=[0, 1, 1, 0])
    raw = {"edge_index": np.array([[0, 1], [1, 2]]), "num_nodes_list": np.array([4]), "node_feat": np.ones((4, 3), np.float16)}
    np.savez(folder / "raw/data.npz", **raw)
    np.savez(folder / "raw/node-label.npz", node_label=np.array([[0.0], [np.nan], [2.0], [np.nan]]))
    data = hr.load("ogbn-papers100M")
    assert (data.num_edges, data.y.tolist(), data.x.dtype) == (2, [0, -1, 2, -1], torch.float32)


def test_ogb_types(here) -> None:
    folder = here / "dataset/ogbn_mag"
    packed(folder / "raw/triplet-type-list.csv.gz", [("author", "writes", "paper"), ("paper", "cites", "paper")])
    packed(folder / "raw/relations/author___writes___paper/edge.csv.gz", [(0, 1), (1, 0)])
    packed(folder / "raw/relations/paper___cites___paper/edge.csv.gz", [(2, 0)])
    packed(folder / "raw/num-node-dict.csv.gz", [("author", "paper"), (2, 3)])
    packed(folder / "raw/node-feat/paper/node-feat.csv.gz", [(1, 2), (3, 4), (5, 6)])
    packed(folder / "raw/node-label/paper/node-label.csv.gz", [7, 8, 9])
    for name, ids in (("train", [0]), ("valid", [1]), ("test", [2])):
        packed(folder / f"split/time/paper/{name}.csv.gz", ids)
    data = hr.load("ogbn-mag")
    assert str(typed_graph(data)) == "HeteroGraph(author: 2, paper: 3; author-writes-paper: 2, paper-cites-paper: 1)"
    assert (data.y.tolist(), data.splits["train"].tolist(), data.info["target"]) == ([-1, -1, 7, 8, 9], [2], "paper")


def test_tgb_users_and_items(here) -> None:
    folder = here / "datasets/tgbl_wiki"
    folder.mkdir(parents=True)
    rows = [f"{n % 4},{n % 3},{float(n)},0,{n / 2},{-n}\n" for n in range(20)]
    (folder / "tgbl-wiki_edgelist_v2.csv").write_text("user_id,item_id,timestamp,state_label,features\n" + "".join(rows))
    data = hr.load("tgbl-wiki")
    assert (data.num_nodes, data.num_edges, data.info["num_users"]) == (7, 20, 4)
    assert sorted(data.graph.time.tolist()) == [float(n) for n in range(20)]
    assert data.extra["edge_features"][3].tolist() == [1.5, -3.0]
    times = np.arange(20.0)
    edges = LinkData.of(data)
    wanted = [int((times <= np.quantile(times, 0.7)).sum()), int((times > np.quantile(times, 0.85)).sum())]
    assert [len(edges.train), len(edges.test), edges.held_out_by] == [*wanted, "time"]


def test_tgb_weights(here, monkeypatch) -> None:
    folder = here / "elsewhere/tgbl_coin"
    folder.mkdir(parents=True)
    (folder / "tgbl-coin_edgelist_v2.csv").write_text("ts,src,dst,w\n5,0xb,0xa,8.0\n7,0xa,0xc,0\n")
    monkeypatch.setattr(tgb, "places", lambda: [here / "elsewhere"])
    data = hr.load("tgbl-coin")
    assert sorted(map(tuple, data.graph.edge_index().T.tolist())) == [(0, 1), (1, 2)]
    assert sorted(data.graph.weight.tolist()) == [0.0, 3.0]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("ogbn-products", "from ogb.nodeproppred import NodePropPredDataset; NodePropPredDataset('ogbn-products')"),
        ("tgbl-wiki", "from tgb.linkproppred.dataset import LinkPropPredDataset; LinkPropPredDataset('tgbl-wiki')"),
    ],
)
def test_what_is_not_on_disk_is_said_with_the_line_that_fetches_it(here, name, line) -> None:
    with pytest.raises(FileNotFoundError) as error:
        hr.load(name)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_what_cannot_be_read_is_a_sentence(here) -> None:
    (here / "dataset/ogbl_ddi").mkdir(parents=True)
    with pytest.raises(ValueError, match="those for nodes"):
        hr.load("ogbl-ddi")
    (here / "datasets/tkgl_yago").mkdir(parents=True)
    with pytest.raises(ValueError, match="tkgl-yago is not read yet"):
        hr.load("tkgl-yago")
    (here / "dataset/ogbn_arxiv/raw").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="the folder is not complete"):
        hr.load("ogbn-arxiv")
