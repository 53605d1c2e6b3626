"""The GPU's kernel on CPU tensors, under Triton's interpreter."""

from interpreted import run_interpreted

SCRIPT = """
import torch
import headrace as hr
from headrace.kernels import _gpu, aggregate_reference
from headrace.kernels._triton_sum import sum_rows

torch.manual_seed(0)
graph = hr.Graph.from_edges(torch.randint(0, 20, (90,)), torch.randint(0, 17, (90,)), 20)  # multi-edges, empty last rows
for width in (1, 17, 130):
    for dtype in (torch.float32, torch.float64, torch.float16):
        x = torch.randn(20, width).to(dtype)
        for weight in (None, torch.rand(90, dtype=torch.float64 if dtype == torch.float64 else torch.float32)):
            found = sum_rows(x, graph.indptr, graph.indices, weight)
            expected = aggregate_reference(x, graph.indptr, graph.indices, weight=weight)
            assert found.dtype == dtype
            assert torch.allclose(found.double(), expected.double(), rtol=2e-3 if dtype == torch.float16 else 1e-5, atol=1e-5)
x, ids, scale = torch.randn(30, 5), torch.randint(0, 30, (20,)), torch.rand(20)
found = sum_rows(x, graph.indptr, graph.indices, ids=ids, mean=True)
assert torch.allclose(found, aggregate_reference(x, graph.indptr, graph.indices, ids=ids, reduce="mean"), atol=1e-6)
found = sum_rows(x, graph.indptr, graph.indices, scale=scale)
assert torch.allclose(found, aggregate_reference(x[:20] * scale[:, None], graph.indptr, graph.indices), atol=1e-5)
for begin, end in ((0, 20), (3, 11), (5, 5)):  # all rows, and ranges of them: the other entries belong to none
    begins, targets, order = _gpu.transposed(graph.indptr[begin : end + 1], graph.indices, 20)
    dense, again = torch.zeros(2, 20, 20)
    for row in range(begin, end):
        for column in graph.neighbours(row).tolist():
            dense[row - begin, column] += 1
    for column in range(20):
        assert order[begins[column] : begins[column + 1]].diff().gt(0).all()
        for row in targets[begins[column] : begins[column + 1]].tolist():
            again[row, column] += 1
    assert torch.equal(dense, again)
    grad = torch.randn(end - begin, 5)
    found = _gpu.weight_gradient(x, graph.indptr[begin : end + 1], graph.indices, grad, None)
    rows = torch.repeat_interleave(torch.arange(end - begin), graph.indptr[begin : end + 1].diff())
    inside = slice(int(graph.indptr[begin]), int(graph.indptr[end]))
    expected = torch.zeros(90)
    expected[inside] = (x[graph.indices[inside].long()] * grad[rows]).sum(1)
    assert torch.allclose(found, expected, atol=1e-5)
assert sum_rows(torch.randn(3, 4), torch.tensor([0]), torch.tensor([], dtype=torch.int64)).shape == (0, 4)
print("equal")
"""


DROPOUT = """
import torch
from headrace.kernels import dropout
from headrace.kernels._triton_dropout import dropout as on_gpu

torch.manual_seed(0)
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    for size in ((7,), (33, 5), (1100, 3), (0, 4)):
        x = torch.randn(size).to(dtype)
        for relu in (False, True):
            expected = dropout(x, 0.3, relu=relu, seed=9)
            found = on_gpu(x, dropped=round(0.3 * 65536), relu=relu, seed=9, gate=None)
            if dtype == torch.bfloat16:  # which the interpreter rounds towards zero
                assert torch.equal(found == 0, expected == 0) and torch.allclose(found, expected, rtol=2**-7)
            else:
                assert torch.equal(found, expected), (dtype, size, relu)
x = torch.randn(100)
assert torch.equal(on_gpu(torch.ones(100), dropped=1 << 15, relu=False, seed=1, gate=x), (x > 0) * 2.0)
x = torch.randn(1000)
expected = on_gpu(x, dropped=9000, relu=False, seed=2**40 + 7, gate=None)
assert torch.equal(on_gpu(x, dropped=9000, relu=False, seed=torch.tensor([2**40 + 7]), gate=None), expected)  # a seed on the device
x = torch.full((64,), float("inf"))
assert not on_gpu(x, dropped=1 << 15, relu=False, seed=1, gate=None).isnan().any()
print("equal")
"""


def test_dropout_draws_the_mask_of_the_cpu_under_the_interpreter():
    run_interpreted(DROPOUT)


def test_sums_equal_the_reference_under_the_interpreter():
    run_interpreted(SCRIPT)
