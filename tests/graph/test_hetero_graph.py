"""`HeteroGraph`: rectangular rows per edge type, from pairs and from PyG."""

import pytest
import torch

import headrace as hr
from headrace.graph import Relation

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


@pytest.mark.parametrize(("num_src", "num_dst"), [(5, 40), (40, 5), (7, 7), (0, 3), (3, 0)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_list_the_sources_in_order_of_the_edges(num_src, num_dst, dtype):
    edges = 60 if num_src and num_dst else 0
    src = torch.randint(0, max(num_src, 1), (edges,), dtype=dtype)
    dst = torch.randint(0, max(num_dst, 1), (edges,), dtype=dtype)
    relation = Relation.from_edges(src, dst, num_src=num_src, num_dst=num_dst, name="a-b-c")
    assert (relation.num_src, relation.num_dst, relation.num_edges) == (num_src, num_dst, edges)
    for v in range(num_dst):
        rows = slice(int(relation.indptr[v]), int(relation.indptr[v + 1]))
        wanted = (dst == v).nonzero().flatten()
        assert relation.edge_id[rows].tolist() == wanted.tolist()
        assert relation.indices[rows].tolist() == src[wanted].tolist()


def test_counts_are_found_where_they_are_not_given():
    graph = hr.HeteroGraph.from_edges({WRITES: ([0, 4], [1, 0]), CITES: torch.tensor([[2], [6]])})
    assert graph.num_nodes == {"author": 5, "paper": 7}
    assert graph.edge_types == [WRITES, CITES]
    assert graph.num_edges == 3
    assert graph.relations[WRITES].num_dst == 7
    graph.validate()


@pytest.mark.parametrize(
    ("edges", "num_nodes", "message"),
    [
        ({("a", "b"): ([0], [0])}, None, "an edge type is a tuple"),
        ({WRITES: ([0, 1], [0])}, None, "one length"),
        ({WRITES: ([0], [0], [0])}, None, "pair"),
        ({WRITES: ([0], [3])}, {"author": 1, "paper": 3}, "edge 0 .* target 3: there are 3 nodes"),
        ({WRITES: ([1], [0])}, {"author": 1, "paper": 3}, "edge 0 .* source 1: there are 1 nodes"),
        ({WRITES: ([-1], [0])}, {"author": 1, "paper": 3}, "source -1"),
        ({WRITES: ([0], [0])}, {"author": 1}, "'paper'"),
    ],
)
def test_edges_that_do_not_fit_are_refused(edges, num_nodes, message):
    with pytest.raises(ValueError, match=message):
        hr.HeteroGraph.from_edges(edges, num_nodes=num_nodes)


def test_relations_must_have_the_sizes_of_their_types():
    relation = Relation(torch.tensor([0, 1]), torch.tensor([0]), 1)
    with pytest.raises(ValueError, match="from 1 to 1 nodes, not 2 to 1"):
        hr.HeteroGraph({"author": 2, "paper": 1}, {WRITES: relation})
    with pytest.raises(ValueError, match="not valid"):
        hr.HeteroGraph({"author": 1, "paper": 1}, {WRITES: Relation(torch.tensor([0, 1]), torch.tensor([1]), 1)}).validate()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_pyg_object_gives_the_same_graph():
    pyg = pytest.importorskip("torch_geometric.data", reason="needs torch-geometric")
    data = pyg.HeteroData()
    data["author"].num_nodes = 2
    data["paper"].x = torch.randn(3, 4)
    data[WRITES].edge_index = torch.tensor([[0, 1, 1], [2, 2, 0]])
    data[CITES].adj_t = torch.sparse_csr_tensor([0, 1, 1, 2], [2, 0], [1.0, 1.0], (3, 3), check_invariants=False)
    graph = hr.HeteroGraph.from_pyg(data)
    assert graph.num_nodes == {"author": 2, "paper": 3}
    assert graph.relations[WRITES].indices.tolist() == [1, 0, 1]
    assert graph.relations[WRITES].edge_id.tolist() == [2, 0, 1]
    assert graph.relations[CITES].indptr.tolist() == [0, 1, 1, 2]
    data["venue", "prints", "paper"].edge_index = torch.tensor([[0], [0]])
    with pytest.raises(ValueError, match="'venue'"):
        hr.HeteroGraph.from_pyg(data)
