"""HeteroData in, HeteroData out: fields against PyG's own loader classes, samples against brute force and a plain sampler."""

import zlib

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.loader import HeteroBatch, HeteroNeighborLoader, NeighborLoader
from headrace.sample import HeteroSampler

pytest.importorskip("torch_geometric", reason="needs torch-geometric")
import torch_geometric.typing as pyg_typing
from pyg_cases import assert_same_fields, assert_transforms_are_called
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader as PygLoader
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import NumNeighbors

from headrace.sample.pyg import PygSampler

WRITES, CITES, WRITTEN = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "written_by", "author")
FANOUTS = {WRITES: [4, 2], CITES: [3, 3], WRITTEN: [2, 0]}


def make_data():
    generator = torch.Generator().manual_seed(0)

    def random_edges(sources, targets, count):
        return torch.stack([torch.randint(0, n, (count,), generator=generator) for n in (sources, targets)])

    data = HeteroData()
    data["author"].x = torch.randn(80, 5, generator=generator)
    data["author"].half = torch.randn(80, 602, generator=generator).bfloat16()
    data["paper"].x = torch.randn(200, 7, generator=generator)
    data["paper"].y = torch.randint(0, 4, (200,), generator=generator)
    data["paper"].mask = torch.rand(200, generator=generator) < 0.3
    data["paper"].extra = np.arange(400).reshape(200, 2)
    data["island"].num_nodes = 3  # without edges
    data[WRITES].edge_index = random_edges(80, 200, 900)
    data[WRITES].edge_attr = torch.randn(900, 2, generator=generator)
    data[CITES].edge_index = random_edges(200, 200, 1500)
    data[CITES].time = torch.arange(1500)
    data[WRITTEN].edge_index = data[WRITES].edge_index.flip(0)
    data.note = "kept as it is"
    return data


@pytest.fixture(scope="module")
def data():
    return make_data()


def assert_same(ours, theirs):
    assert type(ours) is type(theirs)
    assert ours.metadata() == theirs.metadata()
    for a, b in zip([ours._global_store, *ours.stores], [theirs._global_store, *theirs.stores], strict=True):
        assert_same_fields(a, b)


@pytest.mark.parametrize("given", ["indices", "mask", "all"])
@pytest.mark.parametrize("fanouts", [[4, 3], FANOUTS], ids=["list", "dictionary"])
@pytest.mark.parametrize("replace", [False, True])
def test_fields_are_those_of_pygs_loader_for_the_same_sample(data, given, fanouts, replace):
    nodes = {"indices": torch.tensor([4, 17, 150, 3]), "mask": data["paper"].mask, "all": None}[given]
    chosen = "paper" if nodes is None else ("paper", nodes)
    theirs = NodeLoader(data, PygSampler(data, fanouts, seed=5, replace=replace), input_nodes=chosen, batch_size=32)
    ours = NeighborLoader(data, fanouts, input_nodes=chosen, batch_size=32, seed=5, replace=replace)
    assert isinstance(ours, HeteroNeighborLoader)
    assert len(ours) == len(theirs)
    for index, batch in enumerate(theirs):
        positions = torch.arange(index * 32, min((index + 1) * 32, len(ours.seeds.nodes)))
        number = zlib.crc32(ours.seeds.nodes[positions].numpy().data)  # the number the adapter gives this batch
        assert_same(ours(positions, batch=number), batch)


def test_batches_are_the_subgraph_they_say(data):
    loader = NeighborLoader(data, FANOUTS, input_nodes=("paper", data["paper"].mask), batch_size=16, shuffle=True, seed=2)
    for number, batch in enumerate(loader):
        sample = HeteroSampler(hr.HeteroGraph.from_pyg(data), FANOUTS, seed=2).sample({"paper": batch["paper"].input_id}, 0, number)
        assert {k: n.tolist() for k, n in sample.nodes.items()} == {k: batch[k].n_id.tolist() for k in data.node_types}
        assert batch["paper"].batch_size == len(batch["paper"].input_id)
        assert torch.equal(batch["paper"].n_id[: batch["paper"].batch_size], batch["paper"].input_id)
        for kind in ("author", "paper"):
            assert torch.equal(batch[kind].x, data[kind].x[batch[kind].n_id])
        for kind in data.edge_types:
            ends = batch[kind].edge_index
            pair = torch.stack([batch[kind[0]].n_id[ends[0]], batch[kind[2]].n_id[ends[1]]])
            assert torch.equal(pair, data[kind].edge_index[:, batch[kind].e_id])
            assert sum(batch[kind].num_sampled_edges) == ends.shape[1]
        assert batch["island"].num_sampled_nodes == [0, 0, 0]
        assert batch["island"].num_nodes == 0
    assert batch.note == data.note


def test_all_neighbors_are_the_neighborhood_by_brute_force(data):
    batch = next(iter(NeighborLoader(data, [-1, -1], ("paper", torch.tensor([1, 2])), batch_size=2)))
    found = {"paper": {1, 2}, "author": set()}
    frontier = {"paper": {1, 2}, "author": set()}
    edges = {kind: set() for kind in data.edge_types}
    for _ in range(2):
        new = {"paper": set(), "author": set()}
        for kind in data.edge_types:
            for e, (u, v) in enumerate(data[kind].edge_index.t().tolist()):
                if v in frontier[kind[2]]:
                    edges[kind].add(e)
                    new[kind[0]].add(u)
        frontier = {kind: new[kind] - found[kind] for kind in found}
        found = {kind: found[kind] | new[kind] for kind in found}
    assert {kind: set(batch[kind].n_id.tolist()) for kind in found} == found
    assert {kind: set(batch[kind].e_id.tolist()) for kind in edges} == edges


def test_trimming_to_layers_changes_no_output_of_a_model(data):
    from torch_geometric.nn import HeteroConv, SAGEConv
    from torch_geometric.utils import trim_to_layer

    layers = torch.nn.ModuleList(
        HeteroConv({kind: SAGEConv(sizes, 8) for kind, sizes in zip(data.edge_types, widths, strict=True)})
        for widths in ([(5, 7), (7, 7), (7, 5)], [(8, 8)] * 3)
    )
    batch = next(iter(NeighborLoader(data, [4, 3], ("paper", None), batch_size=20)))
    outputs = []
    for trimmed in (False, True):
        x = {kind: batch[kind].x for kind in ("author", "paper")}
        edge_index = batch.edge_index_dict
        for number, layer in enumerate(layers):
            if trimmed:
                x, edge_index, _ = trim_to_layer(number, batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict, x, edge_index)
            x = layer(x, edge_index)
        outputs.append(x["paper"][:20])
    assert outputs[1].shape == (20, 8)
    torch.testing.assert_close(outputs[0], outputs[1])


def test_threads_staleness_and_resuming_change_nothing(data):
    def batches(first=0, **options):
        loader = NeighborLoader(data, [3, 2], ("author", None), batch_size=16, shuffle=True, seed=9, **options)
        loader.resume(2, first)
        return list(loader)

    plain = batches(threads=1, staleness=0)
    for other in (batches(threads=4, staleness=5), batches(num_workers=2, prefetch_factor=3)):
        for a, b in zip(plain, other, strict=True):
            assert_same(a, b)
    assert_same(batches(first=3)[0], plain[3])


def test_transforms_see_what_pyg_shows_them(data):
    def loader(**transforms):
        return NeighborLoader(data, [3], "paper", batch_size=100, **transforms)

    used = assert_transforms_are_called(loader, lambda batch: batch["paper"], output="HeteroSamplerOutput")
    assert used.memory().peak > 0
    assert [stage.name for stage in used.stage_times] == ["sample", "rows", "consumer"]


def test_pygs_numbers_of_neighbors_are_understood(data):
    given = NumNeighbors({CITES: [1, 1]}, default=[2, 2])
    assert NeighborLoader(data, given, "paper").neighbor_sampler.fanouts == {WRITES: [2, 2], CITES: [1, 1], WRITTEN: [2, 2]}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_adj_t_works_as_well(data):
    order = data[WRITES].edge_index[1].argsort(stable=True)
    src, dst = data[WRITES].edge_index[:, order]
    indptr = torch.searchsorted(dst.contiguous(), torch.arange(201))
    other = HeteroData()
    other["author"].x, other["paper"].x = data["author"].x, data["paper"].x
    other[WRITES].adj_t = torch.sparse_csr_tensor(indptr, src, torch.arange(900.0), (200, 80), check_invariants=False)
    batch = next(iter(NeighborLoader(other, [-1], ("paper", torch.arange(20)), batch_size=20)))
    assert batch[WRITES].adj_t.shape == (20, batch["author"].num_nodes)
    assert torch.equal(batch["author"].n_id[batch[WRITES].adj_t.col_indices()], src[batch[WRITES].e_id])
    assert torch.equal(batch[WRITES].adj_t.values(), batch[WRITES].e_id.float())


def test_a_hetero_graph_gives_samples(data):
    graph = hr.HeteroGraph.from_pyg(data)
    loader = NeighborLoader(graph, FANOUTS, ("paper", data["paper"].mask), batch_size=16, seed=3, edge_ids=True)
    for batch, theirs in zip(
        loader, NeighborLoader(data, FANOUTS, ("paper", data["paper"].mask), batch_size=16, seed=3), strict=True
    ):
        assert isinstance(batch, HeteroBatch)
        assert batch.batch_size == theirs["paper"].batch_size
        assert all(torch.equal(batch.n_id[kind], theirs[kind].n_id) for kind in data.node_types)
        assert all(torch.equal(batch.e_id[kind].long(), theirs[kind].e_id) for kind in data.edge_types)
        assert len(batch.blocks) == 2
        assert repr(batch).startswith(f"HeteroBatch({batch.index}, HeteroSample(author: ")
        assert torch.equal(batch.seeds["paper"], theirs["paper"].input_id)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"input_nodes": None}, ValueError, "node types"),
        ({"input_nodes": "venue"}, ValueError, "'venue'"),
        ({"input_nodes": torch.arange(2)}, ValueError, "node types"),
        ({"input_nodes": ("paper", torch.tensor([200]))}, ValueError, "ids from 200 to 200"),
        ({"input_nodes": ("paper", torch.ones(3, dtype=torch.bool))}, ValueError, "mask"),
        ({"num_neighbors": {WRITES: [1]}}, ValueError, "no entry"),
        ({"num_neighbors": [-2]}, ValueError, "at least 0"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"time_attr": "time"}, ValueError, "needs input_time=.*'paper' nodes have no times"),
        ({"time_attr": "when"}, ValueError, "time_attr names 'when', which neither nodes nor edges of the data have"),
        ({"weight_attr": "w"}, ValueError, "weight_attr names 'w', which no edge type of the data has"),
        ({"input_time": torch.zeros(200)}, ValueError, "say by time_attr= where times stand"),
        ({"subgraph_type": "whole"}, ValueError, "subgraph_type must be"),
        ({"subgraph_type": "induced", "disjoint": True}, ValueError, "disjoint trees have no induced subgraph"),
        ({"wrong": 1}, TypeError, "no keyword 'wrong'"),
    ],
)
def test_what_does_not_fit_is_refused(data, options, error, message):
    with pytest.raises(error, match=message):
        NeighborLoader(data, **{"num_neighbors": [2], "input_nodes": "paper", **options})


def test_a_homogeneous_graph_takes_no_dictionary(data):
    homogeneous = hr.Graph.from_edges([0], [1])
    with pytest.raises(ValueError, match="only one kind of edge"):
        NeighborLoader(homogeneous, FANOUTS)
    with pytest.raises(ValueError, match="transform_sampler_output"):
        NeighborLoader(hr.HeteroGraph.from_pyg(data), [1], "paper", transform_sampler_output=lambda o: o)


@pytest.mark.skipif(not pyg_typing.WITH_PYG_LIB, reason="PyG's own sampler of types needs pyg-lib")
def test_all_neighbors_give_pygs_sets(data):
    options = {"input_nodes": ("paper", data["paper"].mask), "batch_size": 32}
    for ours, theirs in zip(NeighborLoader(data, [-1, -1], **options), PygLoader(data, [-1, -1], **options), strict=True):
        for a, b in zip(ours.stores, theirs.stores, strict=True):
            assert set(a.keys()) == set(b.keys())
        for kind in data.node_types:
            assert set(ours[kind].n_id.tolist()) == set(theirs[kind].n_id.tolist())
            assert ours[kind].num_sampled_nodes == theirs[kind].num_sampled_nodes
        for kind in data.edge_types:
            assert set(ours[kind].e_id.tolist()) == set(theirs[kind].e_id.tolist())
            assert ours[kind].num_sampled_edges == theirs[kind].num_sampled_edges
