"""The GPU's kernel on CPU tensors, under Triton's interpreter."""

import subprocess
import sys

import pytest

SCRIPT = """
import torch
import headrace as hr
from headrace.kernels import aggregate_reference
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
assert sum_rows(torch.randn(3, 4), torch.tensor([0]), torch.tensor([], dtype=torch.int64), None).shape == (0, 4)
print("equal")
"""


def test_sums_equal_the_reference_under_the_interpreter():
    pytest.importorskip("triton", reason="needs triton")
    import os

    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, timeout=300)
    assert done.stdout == "equal\n", done.stderr
