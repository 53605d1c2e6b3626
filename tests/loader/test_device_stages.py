"""The loader's stages for a device, run without one: what fails surfaces at its batch, and batches are those of threads."""

import threading
from types import SimpleNamespace

import pytest
import torch

import headrace as hr
from headrace.loader import Batch, LinkNeighborLoader, NeighborLoader
from headrace.loader import base as loader_base
from headrace.loader.base import gpu_of, tensors_in
from headrace.pipeline import Fenced, OnStream
from headrace.sample import MixedSampler, NeighborSampler, StartedSample
from headrace.store import ArrayStore, Tiered


class Handed(Fenced):
    """An item that nothing has to be waited for."""

    def receive(self, tensors):
        assert all(isinstance(tensor, torch.Tensor) for tensor in tensors)
        return self.item


class InPlace(OnStream):
    """The work of a stage, done where it is called."""

    def __call__(self, item):
        return Handed(self.work(item.item if isinstance(item, Fenced) else item), None, torch.device("cpu"))


@pytest.fixture
def as_on_a_device(monkeypatch):
    """Makes a loader take the path of a device, which is the CPU. `threads` 0: as one that samples by launching kernels."""
    monkeypatch.setattr(loader_base, "OnStream", InPlace)

    def change(loader, *, threads=0):
        loader.device, loader._streams, loader.sample_threads = torch.device("cpu"), [None, None], threads
        return loader

    return change


@pytest.fixture(scope="module")
def data():
    return hr.generate.community(nodes=1000, edges=15_000, classes=5, features=12, seed=3, splits=(0.4, 0.1, 0.5))


def fingerprint(batch):
    s = batch.sample
    return (
        batch.index,
        s.nodes.tolist(),
        s.indptr.tolist(),
        s.indices.tolist(),
        batch.input_id.tolist(),
        batch.x.tolist(),
        batch.y.tolist(),
    )


def make(data, **options):
    return NeighborLoader(data, [4, 3], "train", batch_size=32, shuffle=True, seed=6, threads=2, **options)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_batches_of_launched_stages_are_those_of_threads(data, as_on_a_device, threads, staleness):
    expected = [fingerprint(batch) for batch in make(data)]
    loader = as_on_a_device(make(data, staleness=staleness), threads=threads)
    assert [fingerprint(batch) for batch in loader] == expected
    assert loader.peak <= max(staleness, 0)
    loader.resume(0, 5)
    assert [fingerprint(batch) for batch in loader] == expected[5:]
    assert [times.name for times in loader.stage_times] == ["sample", "rows", "consumer"]


def test_mixed_batches_are_those_of_threads(data, as_on_a_device):
    expected = [fingerprint(batch) for batch in make(data)]
    loader = make(data, staleness=4)
    samplers = [NeighborSampler(data.graph, [4, 3], seed=6) for _ in range(2)]
    loader.neighbor_sampler = MixedSampler(*samplers, cpu_threads=2)
    as_on_a_device(loader, threads=loader.neighbor_sampler.threads)
    assert [fingerprint(batch) for batch in loader] == expected
    assert sum(worker.batches for worker in loader.neighbor_sampler.workers) == len(expected)


def links(batch):
    return batch.n_id.tolist(), batch.edge_label_index.tolist(), batch.edge_label.tolist(), batch.x.tolist()


def test_link_batches_are_those_of_threads(data, as_on_a_device):
    def loader():
        edges = data.graph.edge_index()[:, :200]
        return LinkNeighborLoader(data, [3], edges, neg_sampling="binary", batch_size=30, shuffle=True, seed=2, threads=2)

    assert [links(batch) for batch in as_on_a_device(loader())] == [links(batch) for batch in loader()]


def test_pyg_batches_are_those_of_threads(data, as_on_a_device):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    from torch_geometric.data import Data

    graph = Data(x=data.x, y=data.y, edge_index=data.graph.edge_index())
    options = {"num_neighbors": [4, 3], "batch_size": 200, "shuffle": True, "threads": 2}
    for found, expected in zip(as_on_a_device(NeighborLoader(graph, **options)), NeighborLoader(graph, **options), strict=True):
        assert found.to_dict().keys() == expected.to_dict().keys()
        for name, value in expected.to_dict().items():
            assert torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value


def failing(work, at):
    """`work` that fails the `at`-th time."""
    calls = iter(range(10**6))

    def call(*args, **options):
        if next(calls) == at:
            raise RuntimeError(f"no memory at {at}")
        return work(*args, **options)

    return call


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("staleness", [0, 1, 4])
@pytest.mark.parametrize("where", ["start", "finish", "rows", "transform"])
def test_a_failure_in_a_stage_surfaces_at_its_batch(data, as_on_a_device, monkeypatch, where, staleness, threads):
    expected = [fingerprint(batch) for batch in make(data)]
    loader = make(data, staleness=staleness, rows=ArrayStore(data.x), ahead="rows", transform=lambda batch: batch)
    as_on_a_device(loader, threads=threads)
    before = threading.active_count()
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="no memory at 3"):
        if where == "start":
            patch.setattr(loader.neighbor_sampler, "start", failing(loader.neighbor_sampler.start, 3))
        elif where == "finish":
            patch.setattr(StartedSample, "finish", failing(StartedSample.finish, 3))
        elif where == "rows":
            patch.setattr(loader._rows, "gather", failing(loader._rows.gather, 3))
        else:
            patch.setattr(loader, "transform", failing(loader.transform, 3))
        found = []
        for batch in loader:
            found.append(fingerprint(batch))
    assert found == expected[:3]
    assert threading.active_count() == before
    loader.epoch = 0
    assert [fingerprint(batch) for batch in loader] == expected  # nothing is left of it


@pytest.mark.parametrize("threads", [0, 2])
def test_who_leaves_early_finds_the_loader_as_it_was(data, as_on_a_device, threads):
    expected = [fingerprint(batch) for batch in make(data)]
    loader = as_on_a_device(make(data, staleness=4), threads=threads)
    for stop in (0, 3):
        loader.epoch = 0
        for index, batch in enumerate(loader):
            assert fingerprint(batch) == expected[index]
            if index == stop:
                break
    loader.epoch = 0
    assert [fingerprint(batch) for batch in loader] == expected


def test_ctrl_c_in_launched_work_is_not_kept_for_later(data, as_on_a_device):
    calls = []

    def interrupted(batch):
        calls.append(batch.index)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return batch

    given = []
    with pytest.raises(KeyboardInterrupt):
        for batch in as_on_a_device(make(data, staleness=4, transform=interrupted)):
            given.append(batch.index)
    assert given == [0]  # while it was used, batch 2 was launched


def test_the_gpu_that_is_named_is_meant(monkeypatch):
    assert gpu_of(None) is gpu_of("cpu") is gpu_of(torch.device("cpu", 0)) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert gpu_of("cuda") == torch.device("cuda", 1)
    assert gpu_of("cuda:0") == torch.device("cuda", 0)
    assert gpu_of(torch.device("cuda", 2)) == torch.device("cuda", 2)
    with pytest.raises(ValueError, match="device must be 'cpu' or 'cuda', not 'mps'"):
        gpu_of("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="torch sees no GPU here: use device='cpu'"):
        gpu_of("cuda")


def test_all_tensors_of_a_batch_are_found(data):
    batch = next(iter(make(data, edge_ids=True)))
    held = {id(tensor) for tensor in tensors_in(batch)}
    assert held == {id(t) for t in (batch.n_id, batch.sample.indptr, batch.sample.indices, batch.e_id, batch.input_id)}
    assert id(batch.x) in {id(tensor) for tensor in tensors_in(batch)}
    edges = data.graph.edge_index()[:, :50]
    link = next(iter(LinkNeighborLoader(data, [2], edges, neg_sampling="binary", batch_size=50)))
    assert {id(link.edge_label), id(link.edge_label_index)} <= {id(tensor) for tensor in tensors_in(link)}
    moved = link.to("meta")
    assert {id(moved.edge_label), id(moved.n_id)} <= {id(tensor) for tensor in tensors_in(moved)} | {id(moved.n_id)}
    assert id(moved.edge_label_index) in {id(tensor) for tensor in tensors_in(moved)}


def test_all_tensors_that_a_transform_returns_are_found():
    a, b, c = torch.zeros(1), torch.ones(2), torch.ones(3)
    assert tensors_in(a) == [a]
    assert [id(t) for t in tensors_in((a, {"b": b, "rest": [c, 4, None]}, "text"))] == [id(a), id(b), id(c)]
    assert [id(t) for t in tensors_in(SimpleNamespace(a=a, other=5))] == [id(a)]
    assert tensors_in(None) == tensors_in(7) == []


def test_a_moved_batch_has_all_fields(data):
    batch = next(iter(make(data, edge_ids=True)))
    moved = batch.to("meta")  # any device that is not the CPU
    assert torch.equal(moved.input_id, batch.input_id)
    assert moved.e_id.shape == batch.e_id.shape
    assert moved.e_id.device.type == moved.n_id.device.type == moved.x.device.type == "meta"
    assert moved.to("cpu") is batch
    assert moved.to("meta") is moved


def test_rows_take_the_place_of_features(data):
    other = ArrayStore(data.x * 2)
    batch = next(iter(make(data, rows=other)))
    assert isinstance(batch, Batch)
    assert torch.equal(batch.x, 2 * data.x[batch.n_id.long()])
    tiered = Tiered(data.x, device="cpu", device_cache=0.3)
    assert torch.equal(next(iter(make(data, rows=tiered))).x, data.x[batch.n_id.long()])
    with pytest.raises(ValueError, match="rows has 999 rows for 1000 nodes"):
        make(data, rows=ArrayStore(data.x[1:]))


def test_rows_take_the_place_of_a_pyg_objects_features(data):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    from torch_geometric.data import Data

    for own in ({"x": data.x}, {"num_nodes": 1000}):
        graph = Data(y=data.y, edge_index=data.graph.edge_index(), **own)
        batch = next(iter(NeighborLoader(graph, [3], batch_size=20, rows=ArrayStore(data.x * 2))))
        assert torch.equal(batch.x, 2 * data.x[batch.n_id])
        assert torch.equal(batch.y, data.y[batch.n_id])


def test_modes_of_a_gpu_need_one(data):
    for mode in ("gpu", "uva", "mixed"):
        with pytest.raises(ValueError, match=f"mode='{mode}' samples on a GPU: give device='cuda' too"):
            make(data, mode=mode)
    with pytest.raises(ValueError, match=r"mode must be 'auto', .* not 'fast'"):
        make(data, mode="fast")
    assert make(data, mode="cpu", device="cpu").neighbor_sampler.place.mode == "cpu"


def test_a_pinned_graph_may_be_sampled_on_the_cpu(data, monkeypatch):
    graph = hr.Graph(data.graph.indptr, data.graph.indices)
    graph.is_pinned = True  # as `pin` leaves it
    assert NeighborLoader(graph, [2], mode="cpu").neighbor_sampler.place.mode == "cpu"
    with pytest.raises(ValueError, match="torch sees no GPU"):  # which it is pinned for
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        NeighborLoader(graph, [2])
