"""Graphs on a GPU and in page-locked memory; numbers on their way; kernels called directly."""

import gc
import mmap

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import headrace as hr
from headrace.kernels import aggregate, dropout, gather
from headrace.train.steps.reading import Reading

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]
ARRAYS = ("indptr", "indices", "weight", "time", "edge_id")


def make_graph():
    """A graph whose arrays have pages of their own, as large ones do."""
    plain = hr.generate.community(nodes=5_000, edges=60_000, classes=3, features=0).graph
    draw = torch.Generator().manual_seed(1)

    def own(array):
        return torch.frombuffer(mmap.mmap(-1, array.nbytes), dtype=array.dtype).copy_(array)

    return hr.Graph(
        own(plain.indptr),
        own(plain.indices),
        weight=own(torch.rand(plain.num_edges, generator=draw)),
        time=own(torch.randint(0, 9, (plain.num_edges,), generator=draw)),
        edge_id=own(torch.randperm(plain.num_edges, generator=draw)),
    )


def test_a_graph_goes_to_the_gpu_and_back():
    graph = make_graph()
    there = graph.to("cuda")
    assert there.device.type == "cuda"
    assert not there.is_pinned
    assert "cuda" in repr(there)
    assert there.to("cuda") is there
    assert graph.to("cpu") is graph
    back = there.to("cpu")
    for name in ARRAYS:
        assert getattr(there, name).is_cuda, name
        assert torch.equal(getattr(back, name), getattr(graph, name)), name
    for loops in (True, False):
        assert torch.equal(there.degrees(loops=loops).cpu(), graph.degrees(loops=loops))
    with pytest.raises(ValueError, match=r"edge_index works on a graph in host memory.*graph.to\('cpu'\)"):
        there.edge_index()
    with pytest.raises(ValueError, match="only one in host memory can be pinned"):
        there.pin()


def test_a_graph_on_the_gpu_is_checked_first():
    wrong = hr.Graph(torch.tensor([0, 2]), torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="not a valid graph of 1 nodes"):
        wrong.to("cuda")
    with pytest.raises(ValueError, match="not a valid graph of 1 nodes"):
        wrong.pin()


def test_a_graph_is_locked_in_place_as_long_as_it_lives():
    graph = make_graph()
    memory = {name: getattr(graph, name) for name in ARRAYS}
    pinned = graph.pin()
    assert graph.pin() is pinned is pinned.pin()
    assert pinned.is_pinned
    assert not graph.is_pinned
    for name, array in memory.items():
        assert array.is_pinned(), name
        assert getattr(pinned, name).data_ptr() == array.data_ptr(), name
    sampler = hr.sample.NeighborSampler(pinned, [5])
    assert sampler.place.mode == "uva"
    nodes = sampler.sample(torch.arange(50)).nodes
    del graph, pinned
    gc.collect()
    assert all(array.is_pinned() for array in memory.values())  # the sampler reads it
    assert torch.equal(sampler.sample(torch.arange(50)).nodes, nodes)
    del sampler
    gc.collect()
    assert not any(array.is_pinned() for array in memory.values())
    assert (torch.ones(100, device="cuda") * 2).sum().item() == 200  # nothing is left of it


def test_arrays_that_graphs_share_stay_locked_for_the_other():
    graph = make_graph()
    weighted = graph.with_weight(torch.rand(graph.num_edges))
    samplers = [hr.sample.NeighborSampler(g.pin(), [5, 3], weighted=g is weighted) for g in (graph, weighted)]
    uniform = hr.sample.NeighborSampler(weighted, [5, 3], device="cuda", mode="uva")
    expected = uniform.sample(torch.arange(300)).nodes.cpu()
    memory = graph.indices
    del graph, samplers
    gc.collect()
    assert memory.is_pinned()
    assert torch.equal(uniform.sample(torch.arange(300)).nodes.cpu(), expected)
    del weighted, uniform
    gc.collect()
    assert not memory.is_pinned()


def test_a_loader_keeps_its_graph_locked():
    graph = make_graph()
    memory = graph.indices
    data = hr.Dataset(graph, x=torch.randn(5_000, 4))
    loader = hr.loader.NeighborLoader(data, [5], torch.arange(500), batch_size=100, device="cuda", mode="uva")
    expected = [batch.n_id.cpu() for batch in loader]
    assert memory.is_pinned()
    del graph, data
    gc.collect()
    loader.epoch = 0
    assert all(torch.equal(batch.n_id.cpu(), ids) for batch, ids in zip(loader, expected, strict=True))
    del loader
    gc.collect()
    assert not memory.is_pinned()


def test_weights_are_changed_in_host_memory_and_nothing_else_is():
    graph = make_graph()
    other = graph.with_weight(torch.ones(graph.num_edges))
    assert other.indices.data_ptr() == graph.indices.data_ptr()
    assert torch.equal(other.time, graph.time)
    assert graph.with_weight(None).weight is None
    assert other.to("cuda").weight.sum().item() == graph.num_edges


def test_numbers_are_read_when_they_are_there():
    loss, right = torch.tensor(0.5, device="cuda", requires_grad=True) * 3, torch.tensor(7, device="cuda")
    torch.cuda._sleep(10_000_000)
    reading = Reading(loss, right + 1, 2.5, torch.tensor(4.0), torch.ones(1, device="cuda"))
    assert reading.on_their_way
    loss.data.zero_()  # what was launched since does not count
    assert reading.take() == [1.5, 8.0, 2.5, 4.0, 1.0]
    assert not reading.on_their_way
    assert reading.take() == [1.5, 8.0, 2.5, 4.0, 1.0]


def test_second_gradients_of_a_gather_are_those_of_the_cpu():
    ids, rows = torch.tensor([4, 0, 0, 2]), torch.randn(5, 3, dtype=torch.float64)
    found = []
    for device in ("cpu", "cuda"):
        x = rows.to(device).detach().requires_grad_()
        (first,) = torch.autograd.grad((gather(x, ids.to(device)) ** 3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), x)
        found.append((first.detach().cpu(), second.cpu()))
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b)


def test_second_gradients_are_refused_where_kernels_have_none():
    x = torch.randn(5, 3, device="cuda", requires_grad=True)
    indptr, indices = torch.tensor([0, 2, 3], device="cuda"), torch.tensor([0, 4, 1], device="cuda", dtype=torch.int32)
    for out in (aggregate(x, indptr, indices), dropout(x, 0.5, seed=1)):
        with pytest.raises(RuntimeError, match="create_graph=True asks for gradients of the gradient"):
            torch.autograd.grad((out**2).sum(), x, create_graph=True)


def test_fake_tensors_of_a_gpu_have_the_shapes():
    with FakeTensorMode() as mode:
        x, ids = torch.empty(5, 3, device="cuda"), torch.zeros(4, dtype=torch.int64, device="cuda")
        inside = gather(x, ids, check=False)
    assert mode is not None
    for found in (inside, gather(x, ids, check=False), dropout(x, 0.5, seed=1)):
        assert isinstance(found, FakeTensor)
        assert found.device.type == "cuda"


@pytest.mark.parametrize("kernel", ["gather", "aggregate", "dropout"])
def test_compiled_code_gives_the_same(kernel):
    indptr, indices = torch.tensor([0, 2, 3], device="cuda"), torch.tensor([0, 4, 1], device="cuda", dtype=torch.int32)
    ids = torch.tensor([4, 0, 0, 2], device="cuda")
    run = {
        "gather": lambda x: gather(x, ids, check=False),
        "aggregate": lambda x: aggregate(x, indptr, indices, reduce="mean"),
        "dropout": lambda x: dropout(x, 0.5, seed=1, relu=True),
    }[kernel]
    torch.compiler.reset()
    results = []
    for call in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(2)).cuda().requires_grad_()
        out = call(x)
        out.square().sum().backward()
        results.append((out.detach(), x.grad))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
