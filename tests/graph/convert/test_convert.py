"""Datasets from PyG, NetworkX, SciPy and DGL, and back to PyG."""

from types import SimpleNamespace

import networkx as nx
import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData, TemporalData
from torch_geometric.utils import to_torch_csr_tensor

import headrace as hr
from headrace.graph.typed import typed_graph
from headrace.train import NodeOptions


def pairs_of(graph: hr.Graph) -> list[tuple[int, int]]:
    return sorted(map(tuple, graph.edge_index().T.tolist()))


def plain(several: int = 0) -> Data:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 30, (2, 120), generator=generator)
    masks = torch.rand(30, several or 1, generator=generator) < 0.5
    data = Data(x=torch.rand(30, 5, generator=generator), y=torch.arange(30).unsqueeze(1) % 3, edge_index=edges)
    data.edge_weight, data.edge_attr = torch.rand(120, generator=generator), torch.rand(120, 2, generator=generator)
    data.train_mask = masks if several else masks.flatten()
    data.val_mask = ~data.train_mask
    return data


def typed() -> HeteroData:
    data = HeteroData()
    data["author"].num_nodes = 4
    data["paper"].x = torch.arange(6.0).reshape(3, 2)
    data["paper"].y = torch.tensor([0, 1, 1])
    data["paper"].train_mask = torch.tensor([True, False, True])
    data["paper"].test_mask = torch.tensor([False, True, False])
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 3], [0, 0, 2]])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[2, 1], [0, 2]])
    return data


def test_data_comes_back_as_it_was() -> None:
    data = plain()
    ours = hr.Dataset.from_pyg(data)
    assert ours.y.tolist() == data.y.flatten().tolist()
    assert torch.equal(ours.splits["train"], data.train_mask.nonzero().flatten())
    back = ours.to_pyg()
    for name in ("x", "edge_index", "edge_weight", "edge_attr", "train_mask", "val_mask"):
        assert torch.equal(back[name], data[name]), name
    assert back.num_nodes == 30
    assert hr.Dataset.from_pyg(data, undirected=True).graph.is_symmetric()


def test_several_splits_are_official_splits() -> None:
    data = plain(several=4)
    ours = hr.Dataset.from_pyg(data)
    assert ours.extra["train_masks"].shape == (4, 30)
    assert torch.equal(ours.splits["train"], data.train_mask[:, 0].nonzero().flatten())
    assert torch.equal(ours.to_pyg().train_mask, data.train_mask)


def test_sparse_relations_and_times() -> None:
    data = plain()
    sparse = Data(x=data.x, num_nodes=30)
    sparse.adj_t = to_torch_csr_tensor(data.edge_index.flip(0), size=(30, 30))
    assert pairs_of(hr.Dataset.from_pyg(sparse).graph) == sorted(set(pairs_of(hr.Dataset.from_pyg(data).graph)))
    related = Data(edge_index=data.edge_index, edge_type=torch.arange(120) % 4, num_nodes=30, edge_time=torch.arange(120))
    ours = hr.Dataset.from_pyg(related)
    assert ours.extra["triples"][5].tolist() == [int(data.edge_index[0, 5]), 1, int(data.edge_index[1, 5])]
    assert (ours.info["num_relations"], sorted(ours.graph.time.tolist())) == (4, list(range(120)))
    assert torch.equal(ours.to_pyg().edge_type, related.edge_type)
    events = TemporalData(src=torch.tensor([0, 1]), dst=torch.tensor([2, 2]), t=torch.tensor([5, 3]), msg=torch.ones(2, 3))
    assert sorted(hr.Dataset.from_pyg(events).graph.time.tolist()) == [3, 5]


def test_hetero_data_comes_back_as_it_was_and_survives_a_save(tmp_path) -> None:
    data = typed()
    ours = hr.Dataset.from_pyg(data)
    assert ours.x.shape == (7, 3)  # a column that says author, and two features of papers
    assert ours.y.tolist() == [-1, -1, -1, -1, 0, 1, 1]
    assert ours.splits["train"].tolist() == [4, 6]
    ours.save(tmp_path / "typed")
    for version in (ours, hr.open(tmp_path / "typed"), ours.reorder(torch.tensor([4, 0, 5, 1, 6, 2, 3]), ids={"triples": (0, 2)})):
        back = version.to_pyg()
        assert back.node_types == ["author", "paper"]
        assert back["author"].num_nodes == 4
        assert "x" not in back["author"]
        for name in ("x", "y", "train_mask", "test_mask"):
            assert torch.equal(back["paper"][name], data["paper"][name]), name
        for edge_type in data.edge_types:
            assert torch.equal(back[edge_type].edge_index, data[edge_type].edge_index)
        assert typed_graph(version).num_edges == 5


def test_pyg_data_trains() -> None:
    made = hr.generate.community(nodes=300, edges=6000, classes=3, features=8, seed=1)
    result = hr.train.node(made.to_pyg(), options=NodeOptions(hidden=16, fanout=(5, 5), epochs=3, batch_size=50, lr=0.01))
    wanted = hr.train.node(made, options=NodeOptions(hidden=16, fanout=(5, 5), epochs=3, batch_size=50, lr=0.01))
    assert abs(float(result.test_accuracy) - float(wanted.test_accuracy)) < 0.1
    hetero = hr.train.node(typed(), options=NodeOptions(hidden=8, fanout=(5,), epochs=1))
    assert 0 <= hetero.test_accuracy <= 1


def test_networkx_graphs() -> None:
    graph = nx.Graph()
    graph.add_node("ada", age=36, town="x", part="train")
    graph.add_node("bob", age=40, town="y", part="test")
    graph.add_node("cid", age=7, town=None)
    graph.add_edge("ada", "cid", strength=0.5)
    ours = hr.Dataset.from_networkx(graph, features=["age"], label="town", split="part", weight="strength")
    assert pairs_of(ours.graph) == [(0, 2), (2, 0)]
    assert ours.graph.weight.tolist() == [0.5, 0.5]
    assert (ours.x.tolist(), ours.y.tolist(), ours.info["class_names"]) == ([[36.0], [40.0], [7.0]], [0, 1, -1], ["x", "y"])
    assert {name: ids.tolist() for name, ids in ours.splits.items()} == {"train": [0], "test": [1]}
    assert pq.read_table(ours.id_map)["id"].to_pylist() == ["ada", "bob", "cid"]
    directed = hr.Dataset.from_networkx(nx.DiGraph([(0, 1), (1, 2)]))
    assert (pairs_of(directed.graph), directed.id_map) == ([(0, 1), (1, 2)], None)


def test_scipy_matrices() -> None:
    dense = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]])
    ours = hr.Dataset.from_scipy(sp.csr_array(dense), y=[0, 1, 0], x=sp.csr_matrix(np.eye(3)))
    assert (pairs_of(ours.graph), ours.graph.weight) == ([(0, 1), (1, 2)], None)
    assert torch.equal(ours.x, torch.eye(3))
    assert sorted(hr.Dataset.from_scipy(sp.coo_matrix(dense * 2.5)).graph.weight.tolist()) == [2.5, 2.5]


class DglGraph:
    """What of DGL's graphs is used, by the names that its documentation gives."""

    def __init__(self, nodes, edges, rows, edge_rows=None) -> None:
        self._nodes, self._edges = nodes, edges
        self.ntypes, self.canonical_etypes = list(nodes), list(edges)
        self.nodes = {kind: SimpleNamespace(data=rows.get(kind, {})) for kind in nodes}
        self.ndata, self.edata = rows.get(self.ntypes[0], {}), edge_rows or {}

    def num_nodes(self, kind=None) -> int:
        return self._nodes[kind or self.ntypes[0]]

    def edges(self, etype=None):
        return self._edges[etype or self.canonical_etypes[0]]


def test_dgl_graphs() -> None:
    edges = (torch.tensor([0, 1]), torch.tensor([1, 2]))
    rows = {"feat": torch.ones(3, 2), "label": torch.tensor([0, 1, 0]), "train_mask": torch.tensor([1, 0, 1])}
    ours = hr.Dataset.from_dgl(DglGraph({"_N": 3}, {("_N", "_E", "_N"): edges}, {"_N": rows}, {"weight": torch.tensor([0.5, 2.0])}))
    assert (pairs_of(ours.graph), ours.splits["train"].tolist(), ours.num_features) == ([(0, 1), (1, 2)], [0, 2], 2)
    assert ours.graph.weight.tolist() == [0.5, 2.0]
    kinds = {("user", "likes", "item"): edges, ("item", "like", "item"): edges}
    hetero = hr.Dataset.from_dgl(DglGraph({"user": 2, "item": 3}, kinds, {"item": rows}))
    assert (hetero.info["node_types"], hetero.splits["train"].tolist()) == (["user", "item"], [2, 4])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: hr.Dataset.from_pyg([1]), TypeError, "takes a Data, HeteroData or TemporalData of PyG, not a list"),
        (lambda: hr.Dataset.from_pyg(Data(x=torch.ones(3, 1))), ValueError, "neither edge_index nor adj_t"),
        (
            lambda: hr.Dataset.from_pyg(Data(edge_index=torch.ones(3, 2).long())),
            ValueError,
            r"shape \[3, 2\]: it must be \[2, edges\]",
        ),
        (lambda: hr.Dataset.from_pyg(typed_twice()), ValueError, "author and paper have labels: pass target='author'"),
        (
            lambda: hr.Dataset.from_pyg(typed_twice(), target="reader"),
            ValueError,
            "target is 'reader', and labels have: author, paper",
        ),
        (lambda: hr.Dataset.from_networkx(3), TypeError, "takes a graph of NetworkX, not a int"),
        (lambda: hr.Dataset.from_networkx(nx.path_graph(3), features="age"), ValueError, "node 0 has no attribute 'age'"),
        (lambda: hr.Dataset.from_networkx(nx.path_graph(3), label="town"), ValueError, "no node has an attribute 'town'"),
        (lambda: hr.Dataset.from_scipy(np.ones((2, 2))), TypeError, "takes a sparse matrix of SciPy, not a ndarray"),
        (lambda: hr.Dataset.from_scipy(sp.csr_array(np.ones((2, 3)))), ValueError, r"shape \[2, 3\]"),
        (lambda: hr.Dataset.from_dgl(3), TypeError, "takes a graph of DGL, not a int"),
        (lambda: hr.train.node("cora"), TypeError, "data is a str: give a headrace Dataset"),
    ],
)
def test_bad_inputs_are_sentences(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()


def typed_twice() -> HeteroData:
    data = typed()
    data["author"].y = torch.zeros(4).long()
    return data
