"""Training on a whole graph that lies on a GPU: the CPU's numbers, transposes, kept sums, and no waiting."""

import warnings
from dataclasses import replace

import pytest
import torch

import headrace as hr
from headrace.loader import WholeBatch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]
KINDS = ("sage", "gcn", "gin")


@pytest.fixture(scope="module")
def data():
    return hr.generate.community(nodes=4_000, edges=80_000, classes=5, features=48)


def directed(data, weighted=False):
    """The same nodes with half of the edges, loops and repeated edges; the last nodes have none."""
    draw = torch.Generator().manual_seed(0)
    source, target = torch.randint(0, data.num_nodes - 9, (2, 60_000), generator=draw)
    weight = torch.rand(60_000, generator=draw) if weighted else None
    graph = hr.Graph.from_edges(source, target, data.num_nodes, weight=weight)
    return hr.Dataset(graph, x=data.x, y=data.y, splits=data.splits, info=data.info)


def step(model, batch):
    """Loss and gradients."""
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(batch).float(), batch.y.long())
    loss.backward()
    return [loss.detach().cpu(), *[parameter.grad.cpu().clone() for parameter in model.parameters()]]  # moved with the model


def assert_close(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * max(float(b.abs().max()), 1e-3))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_transpose_of_a_gpu_is_that_of_the_cpu(data, wide, weighted):
    graph = directed(data, weighted).graph
    if wide:
        graph = hr.Graph(graph.indptr, graph.indices.long(), weight=graph.weight)
    graph.edge_id = torch.arange(graph.num_edges)
    here, there = graph.reverse(), graph.to("cuda").reverse()
    assert there.device.type == "cuda"
    for name in ("indptr", "indices", "weight", "edge_id", "permutation"):
        a, b = getattr(here, name), getattr(there, name)
        assert (a is None) == (b is None), name
        assert a is None or (a.dtype == b.dtype and torch.equal(a, b.cpu())), name
    empty = hr.Graph.from_edges([], [], 3).to("cuda")
    assert empty.reverse().num_edges == 0
    moved = graph.to("cuda")
    assert moved.reverse() is moved.reverse()


def test_symmetry_is_told_on_a_gpu(data):
    assert data.graph.to("cuda").is_symmetric()
    assert not directed(data).graph.to("cuda").is_symmetric()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["symmetric", "directed", "weighted"])
@pytest.mark.parametrize("hidden", [16, 64])
def test_a_step_on_the_gpu_is_that_of_the_cpu(data, kind, form, hidden):
    used = data if form == "symmetric" else directed(data, form == "weighted")
    torch.manual_seed(0)
    model = hr.nn.GNN(48, hidden, 5, layers=3, conv=kind, dropout=0.0)
    expected = step(model, WholeBatch(used, 3))
    model = model.cuda()
    for keep in ("never", "always"):
        batch = WholeBatch(used, 3, keep_sum=keep).to("cuda")
        first = step(model, batch)
        assert_close(first, expected, 2e-3)
        assert all(torch.equal(a, b) for a, b in zip(step(model, batch), first, strict=True))
    aliased = "reverse" not in batch.data.graph._derived
    assert aliased == (form == "symmetric")


def test_a_whole_batch_is_moved_once(data):
    batch = WholeBatch(data, 2, uses=100).to("cuda")
    assert batch.to("cuda") is batch
    assert batch.x.is_cuda
    assert batch.y.is_cuda
    assert batch.n_id.is_cuda
    assert all(block is batch.blocks[0] for block in batch.blocks)
    assert batch.blocks[0] is WholeBatch(data, 3).to("cuda").blocks[0]
    hr.nn.GNN(48, 16, 5, layers=2).cuda()(batch)
    assert batch.first_sum.nbytes == data.x.nbytes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("autocast", [False, True])
def test_nothing_is_waited_for_within_a_step(data, kind, autocast):
    model = hr.nn.GNN(48, 32, 5, layers=2, conv=kind, dropout=0.5).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for used in (data, directed(data)):
        batch = WholeBatch(used, 2, uses=100).to("cuda")
        seeds = used.splits["train"].cuda()
        labels = batch.y[seeds].long()

        def once(batch=batch, seeds=seeds, labels=labels):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
                rows = model(batch).index_select(0, seeds).float()
                torch.nn.functional.cross_entropy(rows, labels).backward()
            optimizer.step()

        once()  # what is made once per graph is made here
        torch.cuda.synchronize()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        try:
            once()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("keep", ["always", "never"])
def test_a_run_on_the_gpu_learns_what_one_on_the_cpu_does(data, kind, precision, keep):
    how = {"model": kind, "hidden": 32, "layers": 2, "full_batch": True, "epochs": 40, "lr": 0.02, "dropout": 0.2}
    more = {"precision": precision, "keep_sum": keep, "input_dropout": 0.0}
    there = hr.train.node(data, options=hr.train.NodeOptions(**how, **more, device="cuda"))
    here = hr.train.node(data, options=hr.train.NodeOptions(**how, **more))
    assert there.test_accuracy > 0.75
    assert abs(there.test_accuracy - here.test_accuracy) < 0.03


def test_weights_of_edges_go_to_the_gpu(data):
    weighted = directed(data, weighted=True)
    model = hr.nn.GNN(48, 32, 5, layers=2, conv="gcn", dropout=0.0)
    expected, unweighted = step(model, WholeBatch(weighted, 2)), step(model, WholeBatch(directed(data), 2))
    assert_close(step(model.cuda(), WholeBatch(weighted, 2).to("cuda")), expected, 2e-3)
    assert not torch.allclose(expected[1], unweighted[1], rtol=1e-2)  # or the weights would not have been looked at
    options = hr.train.NodeOptions(model="gcn", hidden=32, layers=2, full_batch=True, epochs=3, device="cuda")
    on_gpu, on_cpu = (hr.train.node(weighted, options=replace(options, device=device)) for device in ("cuda", "cpu"))
    assert abs(on_gpu.test_accuracy - on_cpu.test_accuracy) < 0.03


def test_bf16_rows_are_summed_as_bf16(data, monkeypatch):
    """Activations stay in the type of the products, so that sums move half the bytes."""
    from headrace.nn.convs import gcn

    seen, plain = [], gcn.aggregate
    monkeypatch.setattr(gcn, "aggregate", lambda x, *a, **k: (seen.append(x.dtype), plain(x, *a, **k))[1])
    model = hr.nn.GNN(48, 16, 5, layers=3, conv="gcn", dropout=0.5).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        model(WholeBatch(data, 3).to("cuda"))
    assert set(seen) == {torch.bfloat16}
