"""`attend` and `attend_pairs` on a GPU against the native kernels in fp64, whose draws are the same.

A kernel is compiled for every type and shape of rows: few of each are enough here, the interpreter runs the others.
"""

import pytest
import torch

import headrace as hr
from headrace.kernels import Whole, attend, attend_pairs
from headrace.nn import GATConv

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]
KINDS = ["gat", "gatv2"]
TYPES = {torch.float64: 1e-10, torch.float32: 3e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def csr(degrees, columns, dtype=torch.int32):
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    return indptr, torch.randint(0, columns, (int(indptr[-1]),)).to(dtype)


def inputs(kind, rows, columns, heads, channels, dtype):
    x = torch.randn(columns, heads, channels, dtype=torch.float64)
    if kind == "gat":
        more = {"source": torch.randn(columns, heads).double(), "target": torch.randn(rows, heads).double()}
    else:
        more = {"target": torch.randn(rows, heads, channels).double(), "attention": torch.randn(heads, channels).double()}
    return {name: value.to(dtype) for name, value in {"x": x, **more}.items()}


def run(kind, leaves, indptr, indices, device, dtype, **options):
    here = {name: value.to(device, dtype).requires_grad_() for name, value in leaves.items()}
    x = here["x"]
    function = attend if kind == "gat" else attend_pairs
    out = function(x, indptr.to(device), indices.to(device), **{n: v for n, v in here.items() if n != "x"}, **options)
    grad = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)
    found = torch.autograd.grad(out, list(here.values()), grad.to(leaves["x"].dtype).to(device, dtype))
    return {"out": out.detach().cpu(), **{name: value.cpu() for name, value in zip(here, found, strict=True)}}


def assert_same(kind, leaves, indptr, indices, **options):
    dtype = leaves["x"].dtype
    found = run(kind, leaves, indptr, indices, "cuda", dtype, **options)
    again = run(kind, leaves, indptr, indices, "cuda", dtype, **options)
    truth = run(kind, leaves, indptr, indices, "cpu", torch.float64, **options)
    for name, expected in truth.items():
        assert torch.equal(found[name], again[name]), name
        scale = max(float(expected.abs().max()), 1.0) if expected.numel() else 1.0
        difference = (found[name].double() - expected).abs()
        assert not expected.numel() or float(difference.max()) <= 4 * TYPES[dtype] * scale, (name, options)


@pytest.mark.parametrize(
    ("kind", "heads", "channels", "dtype", "dropout"),
    [
        ("gat", 3, 7, torch.float64, 0.4),
        ("gatv2", 3, 7, torch.float64, 0.4),
        ("gat", 4, 16, torch.float32, 0.0),
        ("gatv2", 4, 16, torch.float32, 0.0),
    ],
)
def test_rows_and_gradients_are_those_of_the_cpu_hubs_included(kind, heads, channels, dtype, dropout):
    torch.manual_seed(0)
    indptr, indices = csr([2, 100_000, 3, 2_048, 2_049, 0, *[1] * 20_000, 0], 20_010)
    indices[-15_000:] = 7
    leaves = inputs(kind, 20_007, 20_010, heads, channels, dtype)
    assert_same(kind, leaves, indptr, indices, self_loops=True, dropout=dropout, seed=2**40 + 1)
    assert_same(kind, leaves, indptr, indices.long(), self_loops=False, dropout=dropout)


@pytest.mark.parametrize(
    ("kind", "heads", "channels", "dtype"),
    [("gat", 8, 8, torch.bfloat16), ("gatv2", 1, 47, torch.float16), ("gat", 9, 100, torch.float32)],
)
def test_other_types_and_shapes(kind, heads, channels, dtype):
    torch.manual_seed(0)
    indptr, indices = csr([3, 0, 70, 1, 400, 2, 0], 12)
    leaves = inputs(kind, 7, 12, heads, channels, dtype)
    assert_same(kind, leaves, indptr, indices, dropout=0.4, seed=5)
    assert_same(kind, leaves, indptr, indices, self_loops=True, dropout=0.4, seed=6)


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_without_rows_or_entries(kind):
    for degrees in ([], [0, 0]):
        indptr, indices = csr(degrees, 1)
        for loops in (False, True):
            assert_same(kind, inputs(kind, len(degrees), 3, 4, 16, torch.float32), indptr, indices, self_loops=loops)


@pytest.mark.parametrize("kind", KINDS)
def test_a_given_transpose_changes_no_bit(kind):
    graph = hr.generate.community(nodes=600, edges=90_000, classes=3, features=0).graph
    reverse = graph.reverse().to("cuda")
    leaves = inputs(kind, 600, 600, 4, 16, torch.float32)
    runs = [
        run(kind, leaves, graph.indptr, graph.indices, "cuda", torch.float32, self_loops=True, **given)
        for given in ({}, {"reverse": reverse})
    ]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("self_loops", [False, True])
def test_rows_of_a_whole_are_dropped_as_on_the_cpu(kind, self_loops):
    torch.manual_seed(0)
    indptr, indices = csr([3, 0, 70, 1, 400, 2, 0], 12)
    leaves = inputs(kind, 7, 12, 3, 7, torch.float64)
    rows, begins = torch.randperm(7) + 2**33, indptr[:-1] + 2**34
    found, truth = (
        run(
            kind, leaves, indptr, indices, device, torch.float64, self_loops=self_loops, dropout=0.4, seed=5,
            whole=Whole(rows.to(device), begins.to(device), 2**40),
        )
        for device in ("cuda", "cpu")
    )  # fmt: skip
    for name, expected in truth.items():
        assert torch.allclose(found[name], expected, rtol=0, atol=1e-9), name


@pytest.mark.parametrize("kind", KINDS)
def test_torch_takes_it_for_an_op_and_compiles_it(kind):
    torch.manual_seed(0)
    indptr, indices = csr([3, 0, 4], 5)
    leaves = {name: value.cuda().requires_grad_() for name, value in inputs(kind, 3, 5, 4, 16, torch.float32).items()}
    x, *more = leaves.values()
    op = torch.ops.headrace.attend if kind == "gat" else torch.ops.headrace.attend_pairs
    arguments = (x, indptr.cuda(), indices.cuda(), *more, *[None] * 5, 0, 0.2, True, 0.0, 7, 1)
    torch.library.opcheck(op.default, arguments)
    function = attend if kind == "gat" else attend_pairs

    def layer(x, more):
        return function(2 * x, indptr.cuda(), indices.cuda(), **more, self_loops=True)

    named = {name: value for name, value in leaves.items() if name != "x"}
    plain, compiled = (f(x, named) for f in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")))
    assert torch.equal(plain, compiled)
    assert torch.equal(*(torch.autograd.grad(out.sum(), x)[0] for out in (plain, compiled)))


@pytest.mark.parametrize("kind", KINDS)
def test_captured_launches_draw_anew_with_a_seed_on_the_device(kind):
    torch.manual_seed(0)
    indptr, indices = (part.cuda() for part in csr([30, 0, 12], 20))
    leaves = {name: value.cuda() for name, value in inputs(kind, 3, 20, 4, 16, torch.float32).items()}
    x, more = leaves.pop("x"), leaves
    function = attend if kind == "gat" else attend_pairs
    seed = torch.tensor([5], device="cuda")
    for _ in range(2):
        function(x, indptr, indices, **more, dropout=0.5, seed=seed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function(x, indptr, indices, **more, dropout=0.5, seed=seed)
    for number in (5, 9, 2**40 + 3):
        seed.fill_(number)
        graph.replay()
        assert torch.equal(out, function(x, indptr, indices, **more, dropout=0.5, seed=number))


def test_tensors_on_two_devices_are_named():
    indptr, indices = csr([2, 1], 3)
    leaves = {name: value.cuda() for name, value in inputs("gat", 2, 3, 2, 4, torch.float32).items()}
    with pytest.raises(ValueError, match="indptr is on cpu, x is on cuda"):
        attend(leaves.pop("x"), indptr, indices, **leaves)
    with pytest.raises(ValueError, match="a seed that is a tensor"):
        attend(torch.randn(3, 2, 4), indptr, indices, source=torch.randn(3, 2), target=torch.randn(2, 2), seed=torch.tensor([1]))


@pytest.mark.parametrize("v2", [False, True])
def test_a_layer_over_rows_of_a_graph_is_that_over_all(v2):
    graph = hr.generate.community(nodes=300, edges=5_000, classes=3, features=0).graph.to("cuda")
    torch.manual_seed(0)
    layer, x = GATConv(16, 16, heads=4, v2=v2).cuda(), torch.randn(300, 16, device="cuda")
    with torch.no_grad():
        whole, part = layer(x, graph), layer(x, graph.rows(50, 120))
    assert torch.allclose(whole[50:120], part, atol=1e-5)


def test_memory_is_not_that_of_messages():
    graph = hr.generate.community(nodes=20_000, edges=2_000_000, classes=3, features=0).graph
    reverse = graph.reverse().to("cuda")
    graph = graph.to("cuda")
    x = torch.randn(20_000, 4, 16, device="cuda", requires_grad=True)
    target, attention = torch.randn(20_000, 4, 16, device="cuda"), torch.randn(4, 16, device="cuda", requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attend_pairs(x, graph.indptr, graph.indices, target=target, attention=attention, reverse=reverse).sum().backward()
    messages = 4 * graph.num_edges * 64
    assert torch.cuda.max_memory_allocated() - before < messages / 10
