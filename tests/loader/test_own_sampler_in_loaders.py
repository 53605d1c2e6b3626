"""Loaders take any sampler: batches are those of its samples, for any threads and ranks, and what does not fit is refused."""

import pytest
import torch

import headrace as hr
from headrace.loader import LinkNeighborLoader, NeighborLoader, Shard
from headrace.sample import Hops, NeighborSampler, Sampler, batch_generator


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return hr.generate.community(nodes=500, edges=6_000, classes=4, features=6, seed=2, splits=(0.4, 0.1, 0.5))


class Drawn(Sampler):
    """One neighbor of every seed."""

    def __init__(self, graph, seed=0):
        self.graph, self.seed, self.options = graph, seed, []

    def sample(self, seeds, epoch=0, batch=0, **options):
        self.options.append(options)
        hops = Hops(seeds)
        rows = self.graph.degrees()[hops.frontier].nonzero().flatten()
        nodes = hops.frontier[rows]
        draw = torch.rand(len(rows), generator=batch_generator(self.seed, epoch, batch))
        position = self.graph.indptr[nodes] + (draw * self.graph.degrees()[nodes]).long()
        hops.add(rows, self.graph.indices[position], position if options.get("edge_ids") else None)
        return hops.sample()


def contents(batch):
    sample = batch.sample
    return batch.index, *(part.tolist() for part in (sample.nodes, sample.indptr, sample.indices, batch.input_id, batch.x, batch.y))


def test_batches_are_its_samples_whatever_the_threads(data):
    sampler = Drawn(data.graph, seed=5)
    options = {"neighbor_sampler": sampler, "batch_size": 32, "shuffle": True, "seed": 1}
    loader = NeighborLoader(data, input_nodes="train", threads=3, staleness=4, **options)
    assert loader.neighbor_sampler is sampler
    plain = NeighborLoader(data, input_nodes="train", staleness=0, **options)
    for epoch in range(2):
        batches = list(loader)
        assert [contents(batch) for batch in batches] == [contents(batch) for batch in plain]
        for batch in batches:
            same = sampler.sample(data.splits["train"][batch.input_id], epoch, batch.index)
            assert torch.equal(batch.n_id, same.nodes)
            assert torch.equal(batch.x, data.x[same.nodes])
            assert torch.equal(batch.y, data.y[same.nodes[: batch.batch_size]])
    assert [stage.name for stage in loader.stage_times] == ["sample", "consumer"]
    assert "neighbor_sampler=Drawn" in repr(loader)


def test_ranks_and_resuming_work_as_with_ours(data):
    options = {"input_nodes": "train", "neighbor_sampler": Drawn(data.graph), "batch_size": 32, "shuffle": True}
    expected = [contents(batch) for batch in NeighborLoader(data, **options)]
    rest = []
    for rank in range(2):
        loader = NeighborLoader(data, **options, shard=Shard(rank, 2, "empty", accumulate=3))
        loader.resume(0, 3)
        rest += [contents(batch) for batch in loader]
    assert sorted(rest) == expected[3:]


def test_our_own_sampler_may_be_passed(data):
    sampler = NeighborSampler(data.graph, [4, 2], labor=True, seed=3)
    options = {"input_nodes": "train", "batch_size": 50, "shuffle": True, "seed": 3}
    passed = NeighborLoader(data, neighbor_sampler=sampler, **options)
    made = NeighborLoader(data, [4, 2], labor=True, **options)
    assert [contents(batch) for batch in passed] == [contents(batch) for batch in made]
    with pytest.raises(ValueError, match="neighbor_sampler samples a graph of 4 nodes, but data has 500"):
        NeighborLoader(data, neighbor_sampler=NeighborSampler(hr.Graph.from_edges([0], [3], 4), [2]))


def test_it_is_given_the_times_of_its_seeds():
    graph = hr.Graph.from_edges([0, 1, 2], [3, 3, 3], time=[10, 20, 30])
    sampler = NeighborSampler(graph, [2], temporal="last")
    loader = NeighborLoader(graph, input_nodes=[3, 3], neighbor_sampler=sampler, input_time=[30, 15], batch_size=2)
    (batch,) = loader
    assert batch.n_id.tolist() == [3, 3, 0, 1, 0]
    assert batch.seed_time.tolist() == [30, 15]
    with pytest.raises(ValueError, match="input_time has 3 entries for 2 input nodes"):
        NeighborLoader(graph, input_nodes=[3, 3], neighbor_sampler=sampler, input_time=[1, 2, 3])


def test_links_are_sampled_by_it_too(data):
    sampler, edges = Drawn(data.graph), data.graph.edge_index()[:, :100]
    loader = LinkNeighborLoader(
        data, edge_label_index=edges, neighbor_sampler=sampler, neg_sampling="binary", batch_size=40, threads=2
    )
    assert len(list(loader)) == 3
    for batch in loader:
        same = sampler.sample(batch.seeds, 1, batch.index)
        assert torch.equal(batch.n_id, same.nodes)
        assert batch.edge_label_index.shape == (2, 2 * len(batch.input_id))


def test_a_pyg_object_is_cut_down_to_its_samples(data):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    from torch_geometric.data import Data

    edges = data.graph.edge_index()
    pyg = Data(x=data.x, edge_index=edges, edge_attr=torch.arange(edges.shape[1]))
    loader = NeighborLoader(pyg, neighbor_sampler=Drawn(data.graph), batch_size=100)
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], edges[:, batch.e_id])
        assert torch.equal(batch.edge_attr, batch.e_id)


def test_edge_ids_are_asked_for_and_must_come(data):
    sampler = Drawn(data.graph)
    assert next(iter(NeighborLoader(data, neighbor_sampler=sampler, edge_ids=True))).e_id is not None
    assert sampler.options[0] == {"time": None, "edge_ids": True, "threads": 1}

    class Without(Drawn):
        def sample(self, seeds, epoch=0, batch=0, **_):
            return super().sample(seeds, epoch, batch)

    with pytest.raises(ValueError, match=r"edge_ids=True, but Without.sample returned a sample without edge_id"):
        next(iter(NeighborLoader(data, neighbor_sampler=Without(data.graph), edge_ids=True)))


def test_a_sample_out_of_range_is_named_at_its_batch(data):
    class Wrong(Drawn):
        def sample(self, seeds, epoch=0, batch=0, **_):
            hops = Hops(seeds)
            hops.add([0], [10**6 if batch == 2 else 1])
            return hops.sample()

    batches = iter(NeighborLoader(data, input_nodes=range(10, 20), neighbor_sampler=Wrong(data.graph), batch_size=2))
    assert next(batches).index == 0
    assert next(batches).index == 1
    with pytest.raises(
        ValueError, match=r"Wrong.sample returned a sample with nodes \d+ to 1000000, but the graph has nodes 0 to 499"
    ):
        next(batches)


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({"num_neighbors": [3]}, "num_neighbors"),
        ({"replace": True, "labor": True}, "replace and labor"),
        ({"weighted": True}, "weighted"),
        ({"temporal": "last"}, "temporal"),
        ({"mode": "uva"}, "mode"),
        ({"disjoint": True}, "disjoint"),
    ],
    ids=str,
)
def test_what_the_sampler_decides_must_be_left_out(data, options, left_out):
    with pytest.raises(ValueError, match=f"neighbor_sampler decides how neighbors are drawn, so {left_out} must be left out"):
        NeighborLoader(data, neighbor_sampler=Drawn(data.graph), **options)


def test_neither_fanouts_nor_a_sampler(data):
    with pytest.raises(TypeError, match=r"NeighborLoader needs num_neighbors=.* or neighbor_sampler="):
        NeighborLoader(data)
    with pytest.raises(TypeError, match="LinkNeighborLoader needs num_neighbors="):
        LinkNeighborLoader(data)
    typed = hr.HeteroGraph.from_edges({("author", "writes", "paper"): ([0, 1, 2], [0, 0, 1])})
    with pytest.raises(TypeError, match="needs num_neighbors="):
        NeighborLoader(typed, input_nodes="paper")
    with pytest.raises(ValueError, match="does not support neighbor_sampler="):
        NeighborLoader(typed, input_nodes="paper", neighbor_sampler=Drawn(data.graph))
    with pytest.raises(TypeError, match="object has no sample, start, samples, device"):
        NeighborLoader(data, neighbor_sampler=object())
