import signal

import pytest
import torch

import headrace as hr
from headrace.bench.snapshots.intervals import beside, profiled
from headrace.bench.snapshots.step import Case, check_same, large_sequence
from headrace.kernels import Launch, aggregate, prepare
from headrace.nn.neighbor_sum import leaving_room, neighbor_sum
from headrace.snapshots.streams import TwoStreams
from headrace.train import SnapshotOptions, Watcher

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]
MODELS = ("tgcn", "a3tgcn", "lrgcn", "gconvgru", "gclstm", "mpnnlstm", "wdgcn", "cdgcn", "evolvegcno", "evolvegcnh")
SHAPE = {"window": 3, "hidden": 8, "groups": 6, "stack": 6, "epochs": 3, "val": 0.2, "test": 0.2, "lr": 0.01, "optimizer": "sgd"}


def sequence(kind):
    data = hr.generate.snapshots(nodes=60, edges=300, steps=24, features=8, seed=2)
    if kind == "changing nodes":
        return data
    torch.manual_seed(3)
    steps, nodes = len(data), data.num_nodes
    edges = [(*data.graph(at).edge_index(), torch.rand(data.graph(at).num_edges)) for at in range(steps)]
    if kind == "links":
        return hr.Snapshots([pair[:2] for pair in edges], nodes)
    x = torch.randn(steps, nodes, 8)
    if kind == "classes":
        return hr.Snapshots([edges[3]] * steps, nodes, x=x, y=torch.randint(0, 3, (steps, nodes)))
    graphs = [edges[3]] * steps if kind == "one graph" else edges
    return hr.Snapshots(graphs, nodes, x=x, y=torch.randn(steps, nodes))


def trained(kind, out=None, resume=False, watcher=None, **more):
    options = SnapshotOptions(**{**SHAPE, **more})
    return hr.train.snapshot(sequence(kind), options, out=out, resume=resume, watcher=watcher or Watcher())


def weights(result):
    return {name: value.cpu() for name, value in result.model.state_dict().items()}


def assert_close(some, others, tolerance=1e-4):
    for name, values in weights(some).items():
        torch.testing.assert_close(values, weights(others)[name], rtol=tolerance, atol=tolerance)
    assert some.scores == pytest.approx(others.scores, rel=10 * tolerance, abs=tolerance)
    for name, known in some.baselines.items():
        assert known == pytest.approx(others.baselines[name], rel=1e-4)


def assert_same_bits(some, others):
    for name, values in weights(some).items():
        assert torch.equal(values, weights(others)[name]), name


@pytest.mark.parametrize("model", MODELS)
def test_every_cell_learns_what_it_learns_on_a_cpu(model):
    assert_close(trained("changing graphs", model=model, device="cuda"), trained("changing graphs", model=model))


@pytest.mark.parametrize("kind", ["one graph", "changing nodes", "classes", "links"])
@pytest.mark.parametrize("model", ["tgcn", "gclstm"])
def test_every_forecast_is_that_of_a_cpu(kind, model):
    here = trained(kind, model=model, device="cuda")
    assert next(here.model.parameters()).is_cuda
    assert_close(here, trained(kind, model=model))


@pytest.mark.parametrize("model", ["tgcn", "gconvgru", "gclstm", "lrgcn"])
@pytest.mark.parametrize("keep", [0.0, 1024.0])
@pytest.mark.parametrize("more", [{}, {"overlap": True}, {"overlap": True, "programs": 8}])
def test_captured_is_uncaptured_and_two_streams_are_one(model, keep, more):
    plain = trained("one graph", model=model, keep=keep, device="cuda", capture="never")
    for capture in ("always", "never"):
        assert_close(trained("one graph", model=model, keep=keep, device="cuda", capture=capture, **more), plain)


@pytest.mark.parametrize("kind", ["one graph", "changing graphs", "changing nodes"])
@pytest.mark.parametrize("model", ["tgcn", "gclstm", "evolvegcno"])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_same_run_twice_has_the_same_bits(kind, model, overlap):
    options = {"model": model, "overlap": overlap, "device": "cuda"}
    assert_same_bits(trained(kind, **options), trained(kind, **options))


def test_one_stream_and_two_have_the_bits_of_the_same_operators():
    case = Case.of(large_sequence(2_000, 60_000, 5, torch.device("cuda")), "gclstm", window=4)
    device = torch.device("cuda", torch.cuda.current_device())
    loss, gradients = case.launched(None)()
    for place in (TwoStreams(device), TwoStreams(device, programs=64)):
        for run in (case.launched(place), case.captured(place)):
            for _ in range(3):
                again = run()
                check_same(again, (loss, gradients), "two streams")
                assert torch.equal(again[0], loss)
                assert all(map(torch.equal, again[1], gradients))


@pytest.mark.parametrize("model", ["tgcn", "gclstm"])
def test_a_profile_of_two_streams_is_read(model):
    device = torch.device("cuda", torch.cuda.current_device())
    case = Case.of(large_sequence(20_000, 500_000, 3, device), model, window=2)
    for run in (case.launched(TwoStreams(device)), case.captured(TwoStreams(device))):
        run()
        trace = profiled(run)
        sums, products = [k for k in trace if k.sums], [k for k in trace if k.multiplies]
        assert sums
        assert products, {kernel.name for kernel in trace}
        assert 0 <= beside(sums, products) <= 1
        assert all(kernel.registers > 0 for kernel in (*sums, *products))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", ["one graph", "changing graphs"])
def test_a_run_that_was_interrupted_has_the_bits_of_one_that_was_not(tmp_path, kind, overlap):
    class CtrlC(Watcher):
        steps = 0

        def step(self, event, clock):
            self.steps += 1
            if self.steps == 3:
                signal.raise_signal(signal.SIGINT)

    options = {"model": "gclstm", "overlap": overlap, "device": "cuda"}
    whole = trained(kind, out=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        trained(kind, out=tmp_path / "cut", watcher=CtrlC(), **options)
    assert_same_bits(whole, trained(kind, out=tmp_path / "cut", resume=True, **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_bound_on_programs_changes_no_bit_of_a_sum(dtype, weighted):
    graph = hr.generate.community(nodes=5_000, edges=150_000, features=0).graph.to("cuda")
    x = torch.randn(5_000, 256, device="cuda").to(dtype).requires_grad_()
    weight = torch.rand(graph.num_edges, device="cuda") if weighted else None
    for launch in (None, Launch("split", group=16, columns=64), Launch("window", columns=64, entries=16, warps=4, stages=2)):
        found = []
        for programs in (0, 1, 132, 10_000):
            prepared = prepare(graph, launch, width=256, dtype=dtype, reverse=graph.reverse(), programs=programs)
            out = aggregate(x, graph.indptr, graph.indices, weight=weight, reverse=graph.reverse(), prepared=prepared)
            found.append((out.detach(), *torch.autograd.grad(out.float().square().sum(), [x])))
        for other in found[1:]:
            assert all(map(torch.equal, found[0], other)), launch


def test_sums_that_leave_room_are_the_sums():
    graph = hr.generate.community(nodes=2_000, edges=50_000, features=0).graph.to("cuda")
    x = torch.randn(2_000, 64, device="cuda")
    with leaving_room(40):
        bounded = neighbor_sum("gcn", x, graph)
    assert torch.equal(bounded, neighbor_sum("gcn", x, graph))


def test_norms_of_weights_have_the_same_bits_twice_and_are_those_of_a_cpu():
    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 300, (2, 20_000), generator=draw)
    weight, x = torch.rand(20_000, generator=draw), torch.randn(300, 16, generator=draw)
    for kind in ("gcn", "laplacian"):
        graphs = [hr.Graph.from_edges(src, dst, 300, weight=weight) for _ in range(3)]
        one, two = (neighbor_sum(kind, x.cuda(), graph.to("cuda")) for graph in graphs[:2])
        assert torch.equal(one, two)
        torch.testing.assert_close(one.cpu(), neighbor_sum(kind, x, graphs[2]), rtol=1e-4, atol=1e-5)


def test_several_ranks_are_refused_by_a_gpu(monkeypatch):
    from contextlib import ExitStack
    from types import SimpleNamespace

    from headrace.train.fit import Setup
    from headrace.train.snapshots.recipe import SnapshotRecipe
    from headrace.train.snapshots.windows import Windows

    options = SnapshotOptions(**SHAPE, device="cuda")
    windows = Windows.of(sequence("one graph"), options)
    with ExitStack() as opened, pytest.raises(ValueError, match="in one process, and there are 2 ranks"):
        SnapshotRecipe(windows, Setup(options, None, None, SimpleNamespace(size=2, rank=0), 1, Watcher(), opened))
