"""The GPU's kernels of aggregation on CPU tensors, under Triton's interpreter, against the plain-torch reference."""

from interpreted import run_interpreted

COMMON = """
import sys
import torch
import headrace as hr
from headrace.kernels import Launch, aggregate_reference, prepare
from headrace.kernels._aggregate import gpu as _gpu
from headrace.kernels._aggregate.work import Work

torch.manual_seed(0)
LAUNCHES = {
    "row": Launch("row", columns=32, entries=4, warps=1),
    "rows": Launch("row", columns=16, entries=2, rows=4, warps=1, stages=1),
    "split": Launch("split", group=4, columns=32, entries=4, warps=1),
    "split rows": Launch("split", group=4, columns=32, entries=2, rows=2, warps=1),
    "window": Launch("window", window=16, columns=32, entries=16, warps=4),
    "wide window": Launch("window", window=32, columns=16, entries=16, warps=4),
}
NODES = 37
# many edges come twice, row 5 is a hub, and the last rows are empty
source = torch.cat([torch.randint(0, NODES, (150,)), torch.randint(0, NODES, (60,)), torch.tensor([3, 3, 3])])
target = torch.cat([torch.randint(0, NODES - 3, (150,)), torch.full((60,), 5), torch.tensor([7, 7, 7])])
graph = hr.Graph.from_edges(source, target, NODES)
ENTRIES = graph.num_edges


def wide(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def check(launch, width, dtype, reduce, weighted, by_id, factors, reverse=None):
    x = torch.randn(50 if by_id else NODES, width).to(dtype)
    ids = torch.randint(0, 50, (NODES,), dtype=torch.int32) if by_id else None
    weight = torch.rand(ENTRIES, dtype=wide(dtype)) + 0.5 if weighted else None
    scale, row_scale = (torch.rand(NODES, dtype=wide(dtype)) + 0.5 for _ in range(2)) if factors else (None, None)
    grad = torch.randn(NODES, width).to(dtype)
    work = Work(x, graph.indptr, graph.indices, weight, ids, scale, row_scale, reduce)
    prepared = prepare(graph, launch, reverse=reverse)
    out, where = _gpu.forward(work, launch.packed(), prepared.tensors)
    back = _gpu.Transpose()
    if reverse is not None:
        back = _gpu.Transpose(reverse.indptr, reverse.indices, reverse.permutation, launch.packed(), prepared.reverse.tensors)
    grads = _gpu.backward(work, grad, where, back, need_x=True, need_weight=weighted)
    if width == 20:  # the same bits twice
        assert torch.equal(out, _gpu.forward(work, launch.packed(), prepared.tensors)[0])
        assert all(map(torch.equal, grads, _gpu.backward(work, grad, where, back, need_x=True, need_weight=weighted)))
    exact = x.double().requires_grad_()
    weights = None if weight is None else weight.double().requires_grad_()
    truth = aggregate_reference(
        exact, graph.indptr, graph.indices, reduce=reduce, weight=weights, ids=ids, scale=scale, row_scale=row_scale
    )
    expected = torch.autograd.grad(truth, [exact] if weights is None else [exact, weights], grad.double())
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    case = (launch, width, dtype, reduce, weighted, by_id, factors)
    for name, found, right in zip(("out", "x", "weight"), (out, *grads), (truth.detach(), *expected)):
        assert found.shape == right.shape, (name, case)
        worst = (found.double() - right).abs().max() / right.abs().max().clamp_min(1e-30)
        assert worst < tolerance, (name, float(worst), case)
"""

SUMS = (
    COMMON
    + """
check(LAUNCHES["row"], 33, torch.float32, "sum", False, False, False)
check(LAUNCHES["split"], 1, torch.float64, "mean", True, True, True)
check(LAUNCHES["row"], 16, torch.bfloat16, "sum", False, False, False, graph.reverse())
check(LAUNCHES["rows"], 15, torch.float32, "mean", False, False, True, graph.reverse())
check(LAUNCHES["split"], 20, torch.float32, "mean", True, False, True, graph.reverse())
check(LAUNCHES["split rows"], 20, torch.float32, "sum", False, False, False, graph.reverse())
# not in bf16, whose matrices the interpreter multiplies bit by bit
check(LAUNCHES["window"], 20, torch.float32, "mean", False, False, True, graph.reverse())
check(LAUNCHES["window"], 32, torch.float16, "sum", False, True, False)
check(LAUNCHES["wide window"], 16, torch.float32, "sum", False, False, False, graph.reverse())
for dtype in (torch.float32, torch.float16):  # infinities and NaN go where they belong, and no further
    x = torch.randint(-4, 5, (NODES, 9)).to(dtype)
    x[3, 0], x[4, 1], x[5, 2], x[6, 2], x[7, 2] = float("nan"), float("inf"), -float("inf"), float("inf"), float("inf")
    for name in ("row", "window"):
        launch = LAUNCHES[name]
        out, _ = _gpu.forward(Work(x, graph.indptr, graph.indices), launch.packed(), prepare(graph, launch).tensors)
        truth = aggregate_reference(x, graph.indptr, graph.indices)
        assert truth.isnan().any() and truth.isinf().any() and truth.isfinite().any()
        assert torch.equal(out.isnan(), truth.isnan()) and torch.equal(out[~out.isnan()], truth[~out.isnan()]), name
print("equal")
"""
)

MAXIMA = (
    COMMON
    + """
check(LAUNCHES["row"], 20, torch.float32, "max", False, False, False, graph.reverse())
check(LAUNCHES["split"], 5, torch.float64, "max", True, True, False)
check(LAUNCHES["split"], 16, torch.float16, "max", True, False, False, graph.reverse())
check(LAUNCHES["window"], 3, torch.float32, "max", False, False, False)
# ties, signed zeros, infinities and NaN: the first entry that reaches the maximum, as in the reference
x = torch.randint(-2, 2, (NODES, 9)).float()
x[x == -1] = -0.0
x[3, 0], x[4, 1], x[5, 2], x[6] = float("nan"), float("inf"), -float("inf"), -float("inf")
for name in ("row", "split"):
    launch = LAUNCHES[name]
    out, where = _gpu.forward(Work(x, graph.indptr, graph.indices, reduce="max"), launch.packed(), prepare(graph, launch).tensors)
    truth = aggregate_reference(x, graph.indptr, graph.indices, reduce="max")
    assert torch.equal(out.nan_to_num(9e9), truth.nan_to_num(9e9))
    for row in range(NODES):
        values = x[graph.neighbors(row).long()]
        for column in range(9):
            value = truth[row, column]
            same = values[:, column].isnan() if value.isnan() else values[:, column] == value
            first = int(same.nonzero()[0]) if len(values) else -1
            assert int(where[row, column]) == first, (name, row, column)
print("equal")
"""
)

EDGES = (
    COMMON
    + """
def empty(rows):
    return hr.Graph(torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32))

for launch in (LAUNCHES["rows"], LAUNCHES["split"], LAUNCHES["window"]):
    for rows in (0, 1, 18):  # no rows, no entries
        bare = empty(rows)
        for reduce in ("sum", "mean", "max"):
            work = Work(torch.randn(rows, 3), bare.indptr, bare.indices, reduce=reduce)
            out, where = _gpu.forward(work, launch.packed(), prepare(bare, launch).tensors)
            assert torch.equal(out, torch.zeros(rows, 3))
            grads = _gpu.backward(work, torch.randn(rows, 3), where, _gpu.Transpose(), need_x=True, need_weight=True)
            assert torch.equal(grads[0], torch.zeros(rows, 3)) and grads[1].shape == (0,)
    assert _gpu.forward(Work(torch.randn(NODES, 0), graph.indptr, graph.indices), launch.packed(), ())[0].shape == (NODES, 0)

# a range of a graph's rows: the other entries belong to none
x, weight = torch.randn(NODES, 6, dtype=torch.float64), torch.rand(ENTRIES, dtype=torch.float64)
for begin, end in ((0, NODES), (3, 11), (5, 5)):
    indptr = graph.indptr[begin : end + 1]
    begins, targets, order = _gpu.transposed(indptr, graph.indices, NODES)
    dense, back = torch.zeros(2, NODES, NODES)
    for row in range(begin, end):
        for column in graph.neighbors(row).tolist():
            dense[row - begin, column] += 1
    for column in range(NODES):
        assert order[begins[column] : begins[column + 1]].diff().gt(0).all()
        for row in targets[begins[column] : begins[column + 1]].tolist():
            back[row, column] += 1
    assert torch.equal(dense, back)
    inside = slice(int(graph.indptr[begin]), int(graph.indptr[end]))
    part = hr.Graph(graph.indptr, graph.indices).rows(begin, end)
    for launch in (LAUNCHES["rows"], LAUNCHES["split"], LAUNCHES["window"]):
        out, where = _gpu.forward(Work(x, indptr, graph.indices, weight), launch.packed(), prepare(part, launch).tensors)
        whole = aggregate_reference(x, graph.indptr, graph.indices, weight=weight)[begin:end]
        assert torch.allclose(out, whole)
        plain, _ = _gpu.forward(Work(x.float(), indptr, graph.indices), launch.packed(), prepare(part, launch).tensors)
        assert torch.allclose(plain, aggregate_reference(x.float(), graph.indptr, graph.indices)[begin:end], atol=1e-5)
    grad = torch.randn(end - begin, 6, dtype=torch.float64)
    work = Work(x, indptr, graph.indices, weight)
    grad_x, grad_weight = _gpu.backward(work, grad, where, _gpu.Transpose(), need_x=True, need_weight=True)
    rows = torch.repeat_interleave(torch.arange(end - begin), indptr.diff())
    expected = torch.zeros(ENTRIES, dtype=torch.float64)
    expected[inside] = (x[graph.indices[inside].long()] * grad[rows]).sum(1)
    assert torch.allclose(grad_weight, expected)
    expected = torch.zeros_like(x).index_add_(0, graph.indices[inside].long(), grad[rows] * weight[inside, None])
    assert torch.allclose(grad_x, expected)

# an id that names no row adds nothing, rather than reading what lies there
wrong = graph.indices.clone()
wrong[::7] = torch.tensor([-5, NODES, 2**30]).repeat(ENTRIES)[: len(wrong[::7])].to(wrong.dtype)
kept = torch.ones(ENTRIES)
kept[::7] = 0
work = Work(torch.randn(NODES, 8), graph.indptr, wrong)
expected = aggregate_reference(work.x, graph.indptr, graph.indices, weight=kept)
for launch in (LAUNCHES["row"], LAUNCHES["split"]):
    assert torch.allclose(_gpu.forward(work, launch.packed(), prepare(graph, launch).tensors)[0], expected, atol=1e-5)
print("equal")
"""
)


BOUNDED = (
    COMMON
    + """
from dataclasses import replace
import headrace.kernels._aggregate.triton_sum as triton_sum
import headrace.kernels._aggregate.triton_window as triton_window

grids = []
for module, name in ((triton_sum, "sum_kernel"), (triton_window, "window_kernel")):
    class Seen:
        def __init__(self, kernel):
            self.kernel = kernel
        def __getitem__(self, grid):
            grids.append(grid)
            return self.kernel[grid]
    setattr(module, name, Seen(getattr(module, name)))

for name in ("rows", "split", "window"):
    launch = LAUNCHES[name]
    x, weight = torch.randn(NODES, 40), torch.rand(ENTRIES)
    factors = {"reduce": "mean", "scale": torch.rand(NODES), "row_scale": torch.rand(NODES)}
    for more in ({"weight": weight}, factors) if name == "rows" else ({},):
        found = []
        for programs in (0, 3):
            bounded = replace(launch, programs=programs)
            prepared = prepare(graph, launch, reverse=graph.reverse(), programs=programs)
            assert prepared.launch == prepared.reverse.launch == bounded
            work, turn = Work(x, graph.indptr, graph.indices, **more), graph.reverse()
            grids.clear()
            back = _gpu.Transpose(turn.indptr, turn.indices, turn.permutation, bounded.packed(), prepared.reverse.tensors)
            out, where = _gpu.forward(work, bounded.packed(), prepared.tensors)
            found.append((out, *_gpu.backward(work, x, where, back, need_x=True, need_weight=False)))
            assert grids and all(grid == (3,) if programs else len(grid) == 2 for grid in grids), (name, programs, grids)
        assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other)), (name, more)
        assert torch.allclose(found[0][0], aggregate_reference(x, graph.indptr, graph.indices, **more), atol=1e-5)
print("equal")
"""
)


def test_a_bound_on_programs_changes_no_bit():
    run_interpreted(BOUNDED)


def test_sums_and_means_and_their_gradients_equal_the_reference():
    run_interpreted(SUMS)


def test_maxima_and_their_gradients_equal_the_reference():
    run_interpreted(MAXIMA)


def test_empty_rows_ranges_and_wrong_ids():
    run_interpreted(EDGES)
