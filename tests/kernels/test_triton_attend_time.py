"""The kernels of attention over events on CPU tensors, under Triton's interpreter; and compiled for a GPU, without one."""

import importlib
import re

import pytest

from interpreted import run_interpreted

SCRIPT = """
import sys
import torch
from headrace.kernels import attend_time_reference
from headrace.kernels._attend_time import gpu
from headrace.kernels._attend_time.events import Events

torch.manual_seed(0)
thorough = sys.argv[1:] == ["thorough"]


def both(degrees, columns, heads, channels, edge, times, *, dtype=torch.float64, index=torch.int32, table=0, spare=0, slope=1.0,
         dropout=0.0, seed=7, longest=None, needs=("x", "time")):
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    count = int(indptr[-1]) + spare  # spare ones belong to no row
    longest = longest or (1000 if dtype == torch.float64 else 3)
    indices, dt = torch.randint(0, columns, (count,)).to(index), torch.randint(0, longest, (count,))
    exact = {"query": torch.randn(len(degrees), heads, channels + edge + times) / 4, "x": torch.randn(columns, channels)}
    exact |= {"time_weight": torch.randn(times), "time_bias": torch.randn(times)}
    exact = {name: value.to(dtype).double().requires_grad_() for name, value in exact.items()}
    edge_x = torch.randn(table or count, edge).to(dtype) if edge else None
    edge_id = torch.randint(0, table, (count,)) if table else None
    options = {"slope": slope, "dropout": dropout, "seed": seed}
    named = dict(exact)
    edges = {"edge_x": None if edge_x is None else edge_x.double(), "edge_id": edge_id}
    expected = attend_time_reference(named.pop("query"), indptr, indices, dt, **named, **edges, **options)
    grad = torch.randn(expected.shape).to(dtype)
    truth = dict(zip(exact, torch.autograd.grad(expected, list(exact.values()), grad.double(), allow_unused=True)))
    short = {name: value.detach().to(dtype) for name, value in exact.items()}
    by_head = short["query"].transpose(0, 1).contiguous()
    rest = short["x"], short["time_weight"], short["time_bias"], edge_x, edge_id
    events = Events(by_head, indptr, indices, dt.to(dtype), *rest, *options.values())
    nan = float("nan")
    out, score = torch.full_like(by_head, nan), by_head.new_full((count, heads), nan)
    peak = by_head.new_full((len(degrees), 2, heads), nan)
    gpu.forward(events, out, score, peak)
    if dropout:  # a seed that lies where the rows do draws the same
        again = torch.full_like(out, nan)
        gpu.forward(Events(*events.tensors, slope, dropout, torch.tensor([seed])), again, score.clone(), peak.clone())
        assert torch.equal(out, again)
    found = {"query": torch.full_like(by_head, nan)}
    asked = {"x": torch.full_like(short["x"], nan), "time": short["x"].new_full((2, times), nan)}
    wanted = {f"grad_{name}": value if name in needs else None for name, value in asked.items()}
    gpu.backward(grad.transpose(0, 1).contiguous(), out, score, peak, events, grad_query=found["query"], **wanted)
    found["query"] = found["query"].transpose(0, 1)
    if "x" in needs:
        found["x"] = asked["x"]
    if "time" in needs:
        found["time_weight"], found["time_bias"] = asked["time"]
    assert torch.isfinite(peak).all()
    tolerance = 1e-12 if dtype == torch.float64 else 3e-5
    for name, value in {"out": out.transpose(0, 1), **found}.items():
        correct = expected.detach() if name == "out" else truth[name]
        scale = max(float(correct.abs().max()), 1.0) if correct.numel() else 1.0
        close = torch.allclose(value.double(), correct, rtol=0, atol=4 * tolerance * scale)
        assert close, (name, heads, channels, edge, times, options)
    return [out, *found.values()]


# Empty rows, an isolated last one, multi-edges, rows of several tiles, parts that are missing.
both([3, 0, 7, 40, 2, 0], 9, 2, 8, 0, 6, slope=0.2)
both([3, 0, 7, 2, 0], 9, 1, 1, 3, 1, index=torch.int64, slope=0.2)
both([3, 20], 9, 3, 47 if thorough else 9, 5, 101 if thorough else 17, table=11, spare=4)
if thorough:
    both([5, 1], 4, 2, 100, 0, 100, dtype=torch.float32, slope=0.2)
    both([2, 3], 3, 1, 300, 0, 4)
both([5, 1], 4, 2, 0, 3, 5)
both([5, 1], 4, 2, 3, 2, 0)
both([4], 5, 5, 6, 0, 3, dropout=0.4, seed=2**40, slope=0.2)
both([19, 0, 2], 5, 2, 6, 2, 3, dropout=0.4, dtype=torch.float32)
both([1] * 40, 2, 2, 5, 0, 3)  # a hub among the columns
both([], 3, 2, 4, 0, 2)
both([0, 0], 3, 2, 4, 0, 2)
both([5, 1], 4, 2, 6, 0, 3, needs=("x",))
both([5, 1], 4, 2, 6, 0, 3, needs=("time",))
both([5, 6], 4, 2, 6, 0, 3, longest=2**50)
runs = []
for _ in range(2):
    torch.manual_seed(4)
    runs.append(both([20, 2], 6, 2, 6, 0, 5, dtype=torch.float32, dropout=0.5))
assert all(torch.equal(a, b) for a, b in zip(*runs))
print("equal")
"""


def test_rows_and_gradients_equal_the_reference_under_the_interpreter():
    run_interpreted(SCRIPT)


@pytest.mark.slow
def test_wide_rows_too():
    run_interpreted(SCRIPT, "thorough")


TYPES = {
    "i64": ("indptr", "edge_id", "seed", "t_indptr", "t_rows", "t_position"),
    "i32": ("indices",),
}
NUMBERS = ("rows", "key", "seed_on_device", "dropped")
CONSTANTS = {
    "kept": 1.25,
    "drops": True,
    "slope": 0.2,
    "wide": False,
    "by_id": True,
    "heads": 2,
    "channels": 100,
    "edges": 5,
    "times": 101,
    "x_block": 128,
    "edge_block": 8,
    "time_block": 128,
    "lanes": 16,
    "need_time": True,
}


@pytest.mark.parametrize(
    "kernel", ["triton_forward.forward_kernel", "triton_gradient.rows_kernel", "triton_gradient.columns_kernel"]
)
def test_kernels_compile_for_a_gpu_and_round_angles_as_everywhere(kernel, tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="needs triton")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    module, name = kernel.split(".")
    function = getattr(importlib.import_module(f"headrace.kernels._attend_time.{module}"), name)
    types = {pointer: f"*{kind}" for kind, pointers in TYPES.items() for pointer in pointers}
    types |= {number: "i64" if number == "key" else "i32" for number in NUMBERS}
    signature = {n: "constexpr" if n in CONSTANTS else types.get(n, "*fp32") for n in function.arg_names}
    constants = {(function.arg_names.index(n),): value for n, value in CONSTANTS.items() if n in function.arg_names}
    source = ASTSource(function, signature, constants)
    options = {"num_warps": 4, "enable_fp_fusion": False}
    assembly = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    assert "cos.approx" not in assembly  # which is wrong for the angles of large times
    assert not re.search(r"sin\.approx|\b(red|atom)\.", assembly)
