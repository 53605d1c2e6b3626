"""Loaders on a GPU: batches equal to the CPU's in every mode, in memory that lives as long as its consumer's work."""

import gc

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.loader import LinkNeighborLoader, NeighborLoader
from headrace.sample import Hops, MixedSampler, NeighborSampler, Sampler
from headrace.store import ArrayStore, Cached, Tiered, hot_order

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]

MODES = ["gpu", "uva", "cpu", "mixed"]


@pytest.fixture(scope="module")
def data():
    return hr.generate.community(nodes=20_000, edges=300_000, classes=6, features=33, seed=4, splits=(0.1, 0.1, 0.8))


@pytest.fixture(scope="module")
def events(data):
    """The same with weights, some of them 0, and times."""
    draw = torch.Generator().manual_seed(1)
    weight = torch.exp(2 * torch.randn(data.num_edges, generator=draw))
    weight[torch.rand(data.num_edges, generator=draw) < 0.05] = 0.0
    time = torch.randint(0, 50, (data.num_edges,), generator=draw)
    graph = hr.Graph(data.graph.indptr, data.graph.indices, weight=weight, time=time)
    return hr.Dataset(graph, x=data.x, y=data.y, splits=data.splits)


def make(data, **options):
    return NeighborLoader(data, [8, 4], "train", **{"batch_size": 300, "shuffle": True, "seed": 5, "threads": 3, **options})


def fields(batch, *, degree=True):
    """What a batch holds, by name, and where it lies."""
    found = {name: getattr(batch.sample, name) for name in ("nodes", "indptr", "indices", "edge_id", "tree")}
    found |= {name: getattr(batch, name) for name in ("n_id", "x", "y", "e_id", "input_id", "seed_time", "index", "batch_size")}
    found |= {name: getattr(batch.sample, name) for name in ("num_sampled_nodes", "num_sampled_edges")}
    found |= {f"block {n}": (block.num_src, block.num_dst) for n, block in enumerate(batch.blocks)}
    for name in ("edge_label_index", "edge_label", "src_index", "dst_pos_index", "dst_neg_index"):
        found[name] = getattr(batch, name, None)
    if degree:
        found["degree"] = batch.degree
    return found


def assert_equal(found, expected, *, anywhere=("input_id",)):
    """Fields equal to the bit, those of `found` on the GPU."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].is_cuda or name in anywhere, name
            assert found[name].dtype == value.dtype, (name, found[name].dtype, value.dtype)
            assert torch.equal(found[name].cpu(), value), name
        else:
            assert found[name] == value, name


def compare(loader, expected, *, epochs=2, degree=True):
    assert len(loader) == len(expected)
    for epoch in range(epochs):
        loader.epoch = expected.epoch = epoch
        for found, wanted in zip(loader, expected, strict=True):
            assert_equal(fields(found, degree=degree), fields(wanted, degree=degree))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("staleness", [0, 1, 4])
@pytest.mark.parametrize("ahead", ["sample", "rows"])
def test_batches_are_those_of_the_cpu(data, mode, staleness, ahead):
    loader = make(data, device="cuda", mode=mode, staleness=staleness, ahead=ahead, edge_ids=True)
    compare(loader, make(data, edge_ids=True))
    assert loader.peak <= staleness
    loader.resume(1, 3)
    expected = make(data, edge_ids=True)
    expected.resume(1, 3)
    for found, wanted in zip(loader, expected, strict=True):
        assert_equal(fields(found), fields(wanted))


class FirstNeighbors(Sampler):
    """The first neighbors of every seed, on the CPU."""

    def __init__(self, graph):
        self.graph = graph

    def sample(self, seeds, epoch=0, batch=0, **_):
        hops = Hops(seeds)
        rows = self.graph.degrees()[hops.frontier].nonzero().flatten()
        hops.add(rows, self.graph.indices[self.graph.indptr[hops.frontier[rows]]])
        return hops.sample()


@pytest.mark.parametrize("staleness", [0, 3])
def test_batches_of_a_sampler_on_the_cpu_are_moved(data, staleness):
    options = {"input_nodes": "train", "neighbor_sampler": FirstNeighbors(data.graph), "batch_size": 300, "shuffle": True}
    compare(NeighborLoader(data, **options, device="cuda", staleness=staleness), NeighborLoader(data, **options))


@pytest.mark.parametrize("mode", ["gpu", "uva", "mixed"])
def test_a_sampler_on_the_gpu_may_be_passed(data, mode):
    def sampler(**where):
        return NeighborSampler(data.graph, [8, 4], seed=5, **where)

    given = MixedSampler(sampler(device="cuda"), sampler(), cpu_threads=2) if mode == "mixed" else sampler(device="cuda", mode=mode)
    options = {"batch_size": 300, "shuffle": True, "seed": 5}
    loader = NeighborLoader(data, input_nodes="train", neighbor_sampler=given, **options)
    assert loader.device == given.device
    compare(loader, make(data))


def test_auto_and_the_graphs_own_place(data):
    assert make(data, device="cuda").neighbor_sampler.place.mode == "gpu"
    there = hr.Dataset(data.graph.to("cuda"), x=data.x, y=data.y, splits=data.splits)
    loader = make(there)  # where the graph is
    assert loader.neighbor_sampler.place.mode == "gpu"
    compare(loader, make(data))
    copy = hr.Graph(data.graph.indptr.clone(), data.graph.indices.clone())
    pinned = hr.Dataset(copy.pin(), x=data.x, y=data.y, splits=data.splits)
    loader = make(pinned)
    assert loader.neighbor_sampler.place.mode == "uva"
    compare(loader, make(data))
    assert make(pinned, device="cuda", mode="cpu").neighbor_sampler.place.mode == "cpu"
    compare(make(pinned, device="cuda", mode="mixed"), make(data))


def test_both_places_of_a_mixed_loader_work(data):
    loader = make(data, device="cuda", mode="mixed", staleness=4, batch_size=50)
    compare(loader, make(data, batch_size=50), epochs=1)
    shares = loader.neighbor_sampler.shares()
    assert min(shares.values()) > 0
    assert sum(shares.values()) == pytest.approx(1)


def store_of(kind, data, path):
    if kind == "cached":
        return Cached(ArrayStore(data.x), 0.3, device="cuda")
    if kind == "tiered":
        return Tiered(data.x, device="cuda", device_cache=0.2, order=hot_order(data.graph))
    if kind == "disk":
        np.save(path / "x.npy", data.x.numpy())
        return Tiered(np.load(path / "x.npy", mmap_mode="r"), device="cuda", device_cache=0.2, host=0.3)
    return ArrayStore(data.x) if kind == "host" else ArrayStore(data.x.cuda())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["tiered", "cached", "disk", "host", "gpu"])
def test_rows_of_any_store_are_those_of_the_features(data, kind, mode, tmp_path):
    loader = make(data, device="cuda", mode=mode, rows=store_of(kind, data, tmp_path), staleness=3)
    compare(loader, make(data))


METHODS = {
    "replace": {"replace": True},
    "weighted": {"weighted": True},
    "weighted replace": {"weighted": True, "replace": True},
    "labor": {"labor": True, "batch_dependency": 4},
    "labor weighted": {"labor": True, "weighted": True, "layer_dependency": True},
    "disjoint": {"disjoint": True},
    "temporal": {"temporal": "uniform"},
    "temporal last": {"temporal": "last", "inclusive": True},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", METHODS)
def test_every_way_to_draw_gives_the_cpus_batches(events, method, mode):
    options = dict(METHODS[method], edge_ids=True)
    if "temporal" in options:
        options["input_time"] = torch.arange(len(events.splits["train"])) * 7 % 60
    compare(make(events, device="cuda", mode=mode, **options), make(events, **options), epochs=1, degree=False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("negatives", [None, "binary", {"mode": "triplet", "amount": 2}], ids=str)
def test_link_batches_are_those_of_the_cpu(data, mode, negatives):
    def loader(**options):
        return LinkNeighborLoader(
            data,
            [5, 3],
            data.graph.edge_index()[:, ::40],
            neg_sampling=negatives,
            batch_size=900,
            shuffle=True,
            seed=3,
            threads=2,
            **options,
        )

    compare(loader(device="cuda", mode=mode), loader(), epochs=1)
    compare(loader(device="cuda", mode=mode, staleness=0), loader(), epochs=1)


def pyg_data(data):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    from torch_geometric.data import Data

    draw = torch.Generator().manual_seed(0)
    return Data(
        x=data.x,
        y=data.y,
        edge_index=data.graph.edge_index(),
        edge_attr=torch.randn(data.num_edges, 3, generator=draw),
        edge_time=torch.arange(data.num_edges),
        mask=torch.rand(data.num_nodes, generator=draw) < 0.05,
        extra=np.arange(2 * data.num_nodes).reshape(-1, 2),
        note="kept as it is",
    )


def assert_same_pyg(found, expected):
    assert set(found.keys()) == set(expected.keys())
    for name in expected.keys():  # noqa: SIM118 - PyG's method
        a, b = found[name], expected[name]
        if isinstance(b, torch.Tensor):
            assert a.is_cuda or name == "extra", name
            assert a.dtype == b.dtype, name
            assert torch.equal(a.cpu(), b), name
        else:
            assert a == b, name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("staleness", [0, 3])
@pytest.mark.parametrize("stored", [False, True])
def test_pyg_batches_are_those_of_the_cpu(data, mode, staleness, stored):
    graph = pyg_data(data)
    options = {"num_neighbors": [6, 3], "input_nodes": graph.mask, "batch_size": 250, "shuffle": True, "seed": 2, "threads": 2}
    rows = {"rows": Tiered(data.x, device="cuda", device_cache=0.2)} if stored else {}
    loader = NeighborLoader(graph, **options, device="cuda", mode=mode, staleness=staleness, pin_memory=True, **rows)
    for _ in range(2):
        for found, expected in zip(loader, NeighborLoader(graph, **options), strict=True):
            assert_same_pyg(found, expected)
        loader.epoch = 0


@pytest.mark.parametrize("mode", ["gpu", "cpu"])
@pytest.mark.parametrize("negatives", ["binary", "triplet"])
def test_pyg_link_batches_are_those_of_the_cpu(data, mode, negatives):
    graph = pyg_data(data)
    options = {"edge_label_index": graph.edge_index[:, ::60], "neg_sampling": negatives, "batch_size": 700, "seed": 2}
    loader = LinkNeighborLoader(graph, [4], **options, device="cuda", mode=mode)
    for found, expected in zip(loader, LinkNeighborLoader(graph, [4], **options), strict=True):
        assert_same_pyg(found, expected)


def test_temporal_pyg_batches_are_those_of_the_cpu(data):
    graph = pyg_data(data)
    options = {"num_neighbors": [4, 3], "input_nodes": torch.arange(900), "batch_size": 300, "time_attr": "edge_time"}
    options["input_time"] = torch.arange(900) * 300
    for mode in ("gpu", "cpu"):
        for found, expected in zip(
            NeighborLoader(graph, **options, device="cuda", mode=mode), NeighborLoader(graph, **options), strict=True
        ):
            assert_same_pyg(found, expected)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_pyg_object_without_edge_index_is_refused(data):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    from torch_geometric.data import Data

    rows = torch.sparse_csr_tensor(
        data.graph.indptr, data.graph.indices.long(), torch.ones(data.num_edges), (20_000, 20_000), check_invariants=False
    )
    with pytest.raises(ValueError, match="only adj_t: use device='cpu'"):
        NeighborLoader(Data(x=data.x, adj_t=rows), [2], device="cuda")


@pytest.mark.parametrize("mode", MODES)
def test_epochs_do_not_take_more_and_more_memory(data, mode):
    rows = Tiered(data.x, device="cuda", device_cache=0.2)
    loader = make(data, device="cuda", mode=mode, staleness=4, rows=rows, edge_ids=True)

    def after_epochs(count):
        for _ in range(count):
            for batch in loader:
                batch.x.sum()
            del batch
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    before, workspace = after_epochs(3), loader.neighbor_sampler.workspace_bytes
    assert after_epochs(12) <= before + (1 << 20)
    if mode in ("gpu", "uva"):  # threads of a CPU may meet for the first time later
        assert loader.neighbor_sampler.workspace_bytes == workspace


def checksums(batch):
    """Of all that a batch holds, on the current stream."""
    kept = [batch.n_id, batch.sample.indptr, batch.sample.indices, batch.e_id, batch.x, batch.y]
    if batch.seed_time is not None:
        kept.append(batch.seed_time)
    for name in ("edge_label_index", "edge_label"):
        if getattr(batch, name, None) is not None:
            kept.append(getattr(batch, name))
    return torch.stack([(tensor.double().flatten() * torch.arange(tensor.numel(), device=tensor.device)).sum() for tensor in kept])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["node", "temporal", "link"])
def test_memory_of_a_batch_is_not_used_again_before_its_consumer_is_done(data, events, mode, kind):
    def loader(**options):
        options = {"batch_size": 200, "shuffle": True, "seed": 8, "edge_ids": True, "threads": 3, "ahead": "rows", **options}
        if kind == "link":
            return LinkNeighborLoader(data, [8, 4], data.graph.edge_index()[:, ::60], neg_sampling="binary", **options)
        if kind == "node":
            return NeighborLoader(data, [8, 4], "train", **options)
        times = torch.arange(len(data.splits["train"])) * 7 % 60
        return NeighborLoader(events, [8, 4], "train", temporal="uniform", input_time=times, **options)

    expected = [checksums(batch) for batch in loader()]
    late, found = torch.cuda.Stream(), []
    with torch.cuda.stream(late):
        for batch in loader(device="cuda", mode=mode, staleness=3):
            torch.cuda._sleep(10_000_000)  # cycles: some milliseconds, in which the host runs ahead
            found.append(checksums(batch))
            del batch
    late.synchronize()
    assert len(found) == len(expected)
    for number, (sums, wanted) in enumerate(zip(found, expected, strict=True)):
        assert torch.allclose(sums.cpu(), wanted, rtol=1e-9, atol=0.01), number  # added in another order


def test_memory_that_a_transform_returns_is_not_used_again_too_early(data):
    def pieces(batch):
        return {"rows": batch.x * 1, "rest": (batch.n_id + 0, batch.index)}

    expected = {batch.index: (batch.x.double().sum().item(), int(batch.n_id.long().sum())) for batch in make(data)}
    late, found = torch.cuda.Stream(), {}
    with torch.cuda.stream(late):
        for batch in make(data, device="cuda", staleness=3, transform=pieces):
            torch.cuda._sleep(10_000_000)
            nodes, index = batch["rest"]
            found[index] = (batch["rows"].double().sum(), nodes.long().sum())
            del batch, nodes
    late.synchronize()
    assert found.keys() == expected.keys()
    for index, (rows, nodes) in expected.items():
        assert found[index][0].item() == pytest.approx(rows, abs=1e-6)
        assert int(found[index][1]) == nodes


@pytest.mark.parametrize("mode", MODES)
def test_who_leaves_early_finds_the_loader_as_it_was(data, mode):
    loader = make(data, device="cuda", mode=mode, staleness=4)
    for stop in (0, 2, 0, 5, 1):
        loader.epoch = 0
        for index, _ in enumerate(loader):
            if index == stop:
                break
    workspace = loader.neighbor_sampler.workspace_bytes
    compare(loader, make(data))
    if mode in ("gpu", "uva"):
        assert loader.neighbor_sampler.workspace_bytes == workspace  # those that were left are used again


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("staleness", [0, 2])
def test_an_error_in_a_transform_surfaces_at_its_batch(data, mode, staleness):
    fails = [True]

    def transform(batch):
        if fails[0] and batch.index == 3:
            raise KeyError("batch 3")
        return batch

    seen = []
    loader = make(data, device="cuda", mode=mode, staleness=staleness, transform=transform)
    with pytest.raises(KeyError, match="batch 3"):
        for batch in loader:
            seen.append(batch.index)
    assert seen == [0, 1, 2]
    fails[0] = False
    compare(loader, make(data), epochs=1)


def test_one_batch_by_name(data):
    loader, expected = make(data, device="cuda"), make(data)
    index = torch.tensor([5, 0, 17])
    assert_equal(fields(loader(index, epoch=1, batch=2)), fields(expected(index, epoch=1, batch=2)))


def test_shards_on_a_gpu(data):
    expected = [fields(batch) for batch in make(data)]
    for rank in range(3):
        for step, batch in enumerate(make(data, device="cuda", shard=(rank, 3))):
            assert_equal(fields(batch), expected[(3 * step + rank) % len(expected)])


def test_a_batch_goes_back_to_the_host(data):
    for found, expected in zip(make(data, device="cuda"), make(data), strict=True):
        back = found.to("cpu")
        for name, value in fields(expected).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(fields(back)[name], value), name


def test_training_in_every_mode_ends_with_the_same_weights(data):
    found = []
    for mode in MODES:
        options = hr.train.NodeOptions(
            hidden=32, fanout=(5, 5), epochs=2, batch_size=200, device="cuda", mode=mode, device_cache="20%", hot="probability"
        )
        found.append(hr.train.node(data, options=options).model.state_dict())
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in found[0])
