"""The GPU's kernel on CPU tensors, under Triton's interpreter."""

from interpreted import run_interpreted

DROPOUT = """
import torch
from headrace.kernels import dropout
from headrace.kernels._dropout.triton_dropout import dropout as on_gpu

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
