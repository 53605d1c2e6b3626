"""The GPU's kernels on CPU tensors, under Triton's interpreter; and compiled for a GPU, without one."""

import pytest

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
for height, width, total in ((5, 7, 9), (1, 1, 3), (40, 13, 131), (3, 700, 701), (0, 4, 9), (4, 0, 9), (30, 64, 64)):
    x = torch.randn(height, width)
    first = (total - width) // 2
    for rows in (0, 3, 2**33 + 1, torch.randint(0, 2**40, (height,))):
        numbered = isinstance(rows, torch.Tensor)
        where = {"rows": rows if numbered else None, "first": first if numbered else rows * total + first, "stride": total}
        for relu in (False, True):
            expected = dropout(x, 0.3, relu=relu, seed=9, rows=rows, columns=(first, total))
            for seed in (9, torch.tensor([9])):
                found = on_gpu(x, dropped=round(0.3 * 65536), relu=relu, seed=seed, gate=None, **where)
                assert torch.equal(found, expected), (height, width, total, rows, relu)
x = torch.randn(11, 9)  # elements that stand one after the other
assert torch.equal(on_gpu(x, dropped=1 << 15, relu=False, seed=1, gate=None, first=63), dropout(x, seed=1, rows=7))
gate = torch.randn(11, 9)  # which says all
expected = on_gpu(x, dropped=1 << 15, relu=False, seed=1, gate=gate)
assert torch.equal(on_gpu(x, dropped=1 << 15, relu=False, seed=1, gate=gate, rows=torch.arange(11), first=3, stride=20), expected)
x = torch.full((64,), float("inf"))
assert not on_gpu(x, dropped=1 << 15, relu=False, seed=1, gate=None).isnan().any()
print("equal")
"""


def test_dropout_draws_the_mask_of_the_cpu_under_the_interpreter():
    run_interpreted(DROPOUT)


@pytest.mark.parametrize("kernel", ["_dropout_kernel", "_slice_kernel"])
@pytest.mark.parametrize("seed_on_device", [False, True])
def test_kernels_compile_for_a_gpu(kernel, seed_on_device, tmp_path, monkeypatch):
    triton = pytest.importorskip("triton", reason="needs triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from headrace.kernels._dropout import triton_dropout

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    function = getattr(triton_dropout, kernel)
    constants = {"relu": True, "gated": False, "wide": False, "by_number": True, "seed_on_device": seed_on_device, "blocks": 128}
    constants = {name: value for name, value in constants.items() if name in function.arg_names}
    types = {
        "x": "*fp32",
        "gate": "*fp32",
        "out": "*fp32",
        "rows": "*i64",
        "key": "*i64" if seed_on_device else "i64",
        "first": "i64",
    }
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in function.arg_names}
    source = ASTSource(function, signature, {(function.arg_names.index(n),): value for n, value in constants.items()})
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]
