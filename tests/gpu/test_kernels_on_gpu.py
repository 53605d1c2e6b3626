import pytest
import torch

import headrace as hr
from headrace.kernels import (
    Launch,
    aggregate,
    aggregate_reference,
    dropout,
    launch_for,
    prepare,
    tune,
)
from headrace.kernels._aggregate.launch import H200, bucket_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]


@pytest.fixture(scope="module")
def graph():
    return hr.generate.community(nodes=500, edges=9_000, classes=3, features=0).graph


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
def test_aggregate_and_its_gradients_equal_the_reference(graph, reduce, weighted, by_id):
    torch.manual_seed(0)
    x = torch.randn(700, 17, dtype=torch.float64)
    ids = torch.randint(0, 700, (graph.num_nodes,)) if by_id else None
    weight = torch.rand(graph.num_edges, dtype=torch.float64) if weighted else None
    grad = torch.randn(graph.num_nodes, 17, dtype=torch.float64)
    results = []
    for device in ("cpu", "cuda"):
        here = x.detach().to(device).requires_grad_()
        factor = None if weight is None else weight.detach().to(device).requires_grad_()
        kernel = aggregate_reference if device == "cpu" else aggregate
        out = kernel(
            here,
            graph.indptr.to(device),
            graph.indices.to(device),
            reduce=reduce,
            weight=factor,
            ids=None if ids is None else ids.to(device),
        )
        out.backward(grad.to(device))
        results.append([out.detach().cpu(), here.grad.cpu()] + ([] if factor is None else [factor.grad.cpu()]))
    for expected, found in zip(*results, strict=True):
        assert torch.allclose(expected, found, rtol=1e-10, atol=1e-10)


def test_sums_have_the_same_bits_twice(graph):
    x = torch.randn(graph.num_nodes, 64, device="cuda")
    indptr, indices = graph.indptr.cuda(), graph.indices.cuda()
    assert torch.equal(aggregate(x, indptr, indices), aggregate(x, indptr, indices))


LAUNCHES = {
    "chosen": None,
    "rows": Launch("row", columns=32, entries=4, rows=4, warps=1),
    "split": Launch("split", group=8, columns=64, entries=8, warps=1),
    "window": Launch("window", window=16, columns=64, entries=32, warps=4, stages=2),
    "wide window": Launch("window", window=32, columns=128, entries=16, warps=4, stages=1),
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def both(x, graph, grad, launch, *, weight=None, reverse=None, **options):
    """The result and its gradients by the GPU, and by the reference in fp64."""
    found = []
    for device, function in (("cpu", aggregate_reference), ("cuda", aggregate)):
        wide = torch.float64 if device == "cpu" else x.dtype
        here = x.detach().to(device, wide).requires_grad_()
        factor = None if weight is None else weight.detach().to(device, torch.float64 if device == "cpu" else None).requires_grad_()
        given = {name: t.to(device) if isinstance(t, torch.Tensor) else t for name, t in options.items()}
        there = graph.to(device)
        if device == "cuda":
            back = None if reverse is None else reverse.to(device)
            given |= {"reverse": back, "prepared": prepare(there, launch, width=x.shape[1], dtype=x.dtype, reverse=back)}
        out = function(here, there.indptr, there.indices, weight=factor, **given)
        wanted = [here] if factor is None else [here, factor]
        found.append([t.detach().cpu().double() for t in (out, *torch.autograd.grad(out, wanted, grad.to(device, wide)))])
    return found


def assert_near(found, tolerance):
    for expected, ours in zip(*found, strict=True):
        assert ours.shape == expected.shape
        assert float((ours - expected).abs().max()) <= tolerance * max(float(expected.abs().max()), 1e-30)


@pytest.mark.parametrize(
    ("name", "width", "dtype"),
    [
        ("chosen", 1, torch.float64),
        ("chosen", 47, torch.float32),
        ("chosen", 602, torch.bfloat16),
        ("rows", 100, torch.float32),
        ("split", 100, torch.bfloat16),
        ("split", 602, torch.float32),
        ("window", 47, torch.float32),
        ("window", 100, torch.bfloat16),
        ("wide window", 602, torch.float16),
    ],
)
def test_every_launch_equals_the_reference(graph, name, width, dtype):
    torch.manual_seed(0)
    x, grad = (torch.randn(graph.num_nodes, width).to(dtype) for _ in range(2))
    launch = LAUNCHES[name]
    assert_near(both(x, graph, grad, launch, reverse=graph.reverse()), TOLERANCE[dtype])
    if dtype == torch.float32:
        scale, row_scale = (torch.rand(graph.num_nodes) + 0.5 for _ in range(2))
        assert_near(both(x, graph, grad, launch, reduce="mean", scale=scale, row_scale=row_scale), TOLERANCE[dtype])
    else:
        weight = torch.rand(graph.num_edges, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        assert_near(both(x, graph, grad, launch, reverse=graph.reverse(), weight=weight), TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("name", "width", "dtype"), [("chosen", 47, torch.float32), ("split", 130, torch.bfloat16), ("split", 1, torch.float64)]
)
def test_the_maximum_of_every_launch_equals_the_reference(graph, name, width, dtype):
    torch.manual_seed(0)
    x, grad = (torch.randint(-9, 9, (graph.num_nodes, width)).to(dtype) for _ in range(2))  # many equal ones: the first counts
    assert_near(both(x, graph, grad, LAUNCHES[name], reverse=graph.reverse(), reduce="max"), TOLERANCE[dtype])


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_a_hub_of_100_000_equals_the_reference(reduce):
    torch.manual_seed(0)
    source = torch.randint(0, 5_000, (120_000,))
    target = torch.cat([torch.full((100_000,), 17), torch.randint(0, 5_000, (20_000,))])
    hub = hr.Graph.from_edges(source, target, 5_000)
    x, grad = torch.randint(0, 4, (5_000, 47)).float(), torch.randint(0, 4, (5_000, 47)).float()
    assert prepare(hub, width=47).launch.variant == "split"
    for launch in (None, Launch("row", columns=64, entries=8, warps=1)):
        assert_near(both(x, hub, grad, launch, reverse=hub.reverse(), reduce=reduce), 0.0)  # whole numbers below 2^24: exact


@pytest.mark.parametrize("name", LAUNCHES)
def test_every_launch_gives_the_same_bits_twice(graph, name):
    x, grad = (torch.randn(graph.num_nodes, 100, device="cuda") for _ in range(2))
    there = graph.to("cuda")
    made = prepare(there, LAUNCHES[name], width=100)
    runs = []
    for _ in range(2):
        here = x.clone().requires_grad_()
        out = aggregate(here, there.indptr, there.indices, prepared=made)
        out.backward(grad)
        runs.append((out.detach(), here.grad))
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_infinities_go_no_further_than_their_neighbors(graph, dtype):
    x = torch.randint(-4, 5, (graph.num_nodes, 33)).to(dtype)
    x[3, 0], x[4, 1], x[5, 2], x[6, 2], x[7, 2] = float("nan"), float("inf"), -float("inf"), float("inf"), float("inf")
    expected, there = aggregate_reference(x, graph.indptr, graph.indices), graph.to("cuda")
    found = aggregate(x.cuda(), there.indptr, there.indices, launch=LAUNCHES["window"]).cpu()
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found[~found.isnan()], expected[~found.isnan()])


def test_repeated_ids_have_the_same_gradient_twice(graph):
    x = torch.randn(20, 64, device="cuda", requires_grad=True)
    ids = torch.randint(0, 20, (graph.num_nodes,), device="cuda")
    there, grad = graph.to("cuda"), torch.randn(graph.num_nodes, 64, device="cuda")
    grads = [torch.autograd.grad(aggregate(x, there.indptr, there.indices, ids=ids), x, grad)[0] for _ in range(2)]
    assert torch.equal(*grads)


@pytest.mark.parametrize("variant", ["row", "split", "window"])
def test_more_than_two_to_the_24_edges(variant):
    """Ids and offsets beyond what fp32 counts, and an element count of x beyond what int32 does."""
    rows, degree, width = 1_300_000, 14, 3
    assert rows * degree > 1 << 24
    columns = rows
    indices = torch.arange(rows * degree, device="cuda", dtype=torch.int32) % columns
    indptr = torch.arange(0, rows * degree + 1, degree, device="cuda")
    x = (torch.arange(columns, device="cuda") % 251).float().unsqueeze(1).expand(-1, width).contiguous()
    launch = Launch(variant, columns=16, entries=16, warps=4 if variant == "window" else 1, group=8)
    out = aggregate(x, indptr, indices, launch=launch)
    expected = x[indices.long()].view(rows, degree, width).sum(1)
    assert torch.equal(out, expected)


def test_rows_past_two_to_the_31_elements():
    rows, width = (1 << 31) // 64 + 100, 64
    x = torch.zeros(rows, width, device="cuda", dtype=torch.float16)
    x[-1], x[-2], x[3] = 2, 5, 7
    indices = torch.tensor([rows - 1, 3, rows - 2], device="cuda", dtype=torch.int32)
    indptr = torch.tensor([0, 2, 3], device="cuda")
    for launch in (None, Launch("split", group=1), Launch("window", entries=16, columns=64, warps=4)):
        assert aggregate(x, indptr, indices, launch=launch)[:, 0].tolist() == [9, 5]
    assert aggregate(x, indptr, indices, reduce="max")[:, 63].tolist() == [7, 5]
    many = torch.zeros(rows + 1, dtype=torch.int64, device="cuda")
    many[-1] = 3  # all entries in the last row: its place in the output is past 2^31 too
    assert aggregate(x, many, indices)[-1, 5].item() == 14


def test_a_symmetric_graph_is_its_own_reverse_on_a_gpu(graph):
    both_ways = hr.Graph.from_edges(*torch.randint(0, 300, (2, 4_000)), 300, undirected=True).to("cuda")
    x = torch.randn(300, 32, device="cuda", requires_grad=True)
    grad = torch.randn(300, 32, device="cuda")
    for reduce in ("sum", "mean", "max"):
        for weight in (None, torch.rand(both_ways.num_edges, device="cuda")):
            options = {"reduce": reduce, "weight": weight}
            grads = [
                torch.autograd.grad(aggregate(x, both_ways.indptr, both_ways.indices, reverse=reverse, **options), x, grad)[0]
                for reverse in (None, both_ways)
            ]
            torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_aggregation_compiles_without_a_break(graph, reduce):
    there = graph.to("cuda")
    made = prepare(there, Launch("split", group=8, columns=64, entries=8, warps=1))

    def layer(x):
        return aggregate(x.relu(), there.indptr, there.indices, reduce=reduce, prepared=made) * 2

    x = torch.randn(graph.num_nodes, 33, device="cuda", requires_grad=True)
    expected = layer(x)
    found = torch.compile(layer, fullgraph=True)(x)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(found, x, grad), torch.autograd.grad(expected, x, grad))


def test_an_aggregation_is_recorded_in_a_cuda_graph(graph):
    there = graph.to("cuda")
    x = torch.randn(graph.num_nodes, 64, device="cuda")
    made = prepare(there, Launch("split", group=8, columns=64, entries=8, warps=1))
    expected = aggregate(x, there.indptr, there.indices, prepared=made)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        out = aggregate(x, there.indptr, there.indices, prepared=made)
    recorded.replay()
    assert torch.equal(out, expected)


def test_tuning_keeps_the_fastest_launch_in_a_file(tmp_path):
    bucket = bucket_of(mean_degree=50, width=16, dtype=torch.float32)
    table = tune("cuda", path=tmp_path / "table.json", buckets=[bucket])
    assert set(table) == set(H200)
    again = tune("cuda", path=tmp_path / "table.json", buckets=[])
    assert again == table
    assert launch_for(mean_degree=50, width=16, dtype=torch.float32, table=table) == table[bucket]
    with pytest.raises(ValueError, match="is no bucket"):
        tune("cuda", path=tmp_path / "table.json", buckets=["wide"])


def test_tensors_on_two_devices_are_named(graph):
    with pytest.raises(ValueError, match="indptr is on cpu, x is on cuda"):
        aggregate(torch.randn(graph.num_nodes, 4, device="cuda"), graph.indptr, graph.indices)


def test_what_was_prepared_for_another_graph_is_refused(graph):
    other = hr.generate.community(nodes=400, edges=9_000, classes=3, features=0).graph
    there = graph.to("cuda")
    with pytest.raises(ValueError, match="prepared is of 400 rows with 9000 entries, but these are 500 rows"):
        aggregate(torch.zeros(500, 4, device="cuda"), there.indptr, there.indices, prepared=prepare(other))


@pytest.mark.parametrize("relu", [False, True])
def test_dropout_keeps_the_mean_and_its_gradient_the_mask(relu):
    x = torch.randn(1000, 100, device="cuda").requires_grad_()
    out = dropout(x, 0.25, relu=relu, seed=3)
    out.sum().backward()
    passed = (x > 0) if relu else torch.ones_like(x, dtype=torch.bool)
    kept = out != 0
    assert abs(float(kept[passed].float().mean()) - 0.75) < 0.01
    assert torch.allclose(x.grad, torch.where(kept, 4 / 3, 0.0))
    assert torch.equal(out, dropout(x, 0.25, relu=relu, seed=3))


@pytest.mark.parametrize("relu", [False, True])
def test_dropout_of_a_slice_is_that_of_the_whole(relu):
    x = torch.randn(1000, 100, device="cuda").requires_grad_()
    whole = dropout(x, 0.25, relu=relu, seed=3)
    (grad,) = torch.autograd.grad(whole.sum(), x)
    rows = torch.randperm(1000, device="cuda")[:700]
    for chosen, where in ((slice(30, 900), {"rows": 30}), (rows, {"rows": rows})):
        part = x.detach()[chosen][:, 3:64].requires_grad_()
        out = dropout(part, 0.25, relu=relu, seed=3, columns=(3, 100), **where)
        assert torch.equal(out, whole[chosen][:, 3:64])
        assert torch.equal(torch.autograd.grad(out.sum(), part)[0], grad[chosen][:, 3:64])
    far = {"rows": 2**33 + 5, "columns": (3, 131)}
    assert torch.equal(dropout(x, seed=3, **far).cpu(), dropout(x.cpu(), seed=3, **far))
