"""The attention kernels of a GPU on CPU tensors, under Triton's interpreter; and compiled for a GPU, without one."""

import importlib

import pytest

from interpreted import run_interpreted

SCRIPT = """
import sys
from dataclasses import replace

import torch
from headrace.kernels import Whole, attend_pairs_reference, attend_reference
from headrace.kernels._attend import gpu as _attend_gpu
from headrace.kernels._attend.scores import Scores

torch.manual_seed(0)
pairs, thorough = sys.argv[1] == "gatv2", sys.argv[2:] == ["thorough"]


def both(degrees, columns, heads, channels, *, index=torch.int32, dtype=torch.float64, spare=0, needs=None, **options):
    group = {"group": options.pop("group")} if "group" in options else {}
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    indices = torch.randint(0, columns, (int(indptr[-1]) + spare,)).to(index)  # spare ones belong to no row
    rows, count = len(degrees), int(indptr[-1])
    leaves = {"x": torch.randn(columns, heads, channels), "target": torch.randn(rows, heads, channels if pairs else 1)}
    leaves |= {"attention": torch.randn(heads, channels)} if pairs else {"source": torch.randn(columns, heads)}
    if not pairs:
        leaves["target"] = leaves["target"][..., 0].contiguous()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    kinds = {"x": dtype, "target": dtype if pairs else wide, "attention": wide, "source": wide}
    leaves = {name: value.to(kinds[name]) for name, value in leaves.items()}
    exact = {name: value.double().requires_grad_() for name, value in leaves.items()}
    options = {"slope": 0.2, "self_loops": False, "dropout": 0.0, "seed": 7, "whole": None} | options
    x = exact.pop("x")
    whole = options.pop("whole")
    # The reference counts positions over the entries that are there: without loops, spare ones make no difference.
    expected = (attend_pairs_reference if pairs else attend_reference)(x, indptr, indices[:count], **exact, **options, whole=whole)
    grad = torch.randn(expected.shape).to(dtype)
    wanted = ["x", *exact]
    truth = dict(zip(wanted, torch.autograd.grad(expected, [x, *exact.values()], grad.double())))
    place = {}
    if whole is not None:
        place = {"shift": whole.shift(indptr), "whole_rows": whole.rows, "whole_entries": whole.entries}
    scores = Scores(**{n: v for n, v in leaves.items() if n != "x"}, **options, **place)
    with torch.no_grad():
        out, peak = _attend_gpu.forward(leaves["x"], indptr, indices, scores, **group)
        found = {n: torch.full_like(leaves[n], float("nan")) for n in (needs or wanted)}
        asked = {f"grad_{n}": found.get(n) for n in ("x", "source", "target", "attention")}
        _attend_gpu.backward(grad, peak, leaves["x"], indptr, indices, (None, None, None), scores, **asked, **group)
        if options["dropout"]:  # a seed that lies where the rows do draws the same
            drawn = replace(scores, seed=torch.tensor([options["seed"]]))
            assert torch.equal(_attend_gpu.forward(leaves["x"], indptr, indices, drawn, **group)[0], out)
    assert torch.isfinite(peak).all()
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    for name, value in {"out": out, **found}.items():
        correct = expected if name == "out" else truth[name]
        scale = max(float(correct.detach().abs().max()), 1.0) if correct.numel() else 1.0
        assert torch.allclose(value.double(), correct, rtol=0, atol=4 * tolerance * scale), (name, heads, channels, dtype, options)
    return out, found


# Empty rows, an isolated last one, multi-edges, fewer rows than sources.
both([3, 0, 7, 2, 0], 9, 1, 1)
both([3, 0, 7, 2, 0], 9, 3, 7, index=torch.int64, self_loops=True)
both([3, 4], 9, 1, 47, spare=4)  # entries of no row, as a padded batch has
if thorough:
    both([4], 5, 12, 64, slope=-0.5)  # heads of more than one program
both([], 3, 2, 4)
both([0, 0], 3, 2, 4, self_loops=True)
# Dropout: the reference has the CPU's mask, and one bit of it more or less would show. Rows of more than 2 groups are cut.
both([6, 0, 9, 1], 9, 2, 2, self_loops=True, dropout=0.4, seed=2**40)
both([25, 0, 10], 6, 8, 4, group=5, self_loops=True, dropout=0.4)
both([11, 3], 4, 5, 3, group=4, dropout=0.4)
# Rows that are part of a whole, with positions above 2^32; fewer rows than sources.
far = 2**33 + 5
part = Whole(torch.tensor([far, 0, 3, 2**40]), torch.tensor([far, 7, far + 100, 0]), 2**41)
for loops in (False, True) if thorough else (True,):
    both([6, 0, 9, 1], 9, 5, 2, self_loops=loops, dropout=0.4, seed=2**40, whole=part)
    both([25, 0, 10, 3], 6, 3, 4, group=5, self_loops=loops, dropout=0.4, spare=3, whole=part, index=torch.int64)
both([1] * 13, 2, 1, 3, group=6)  # a hub among the sources
if thorough:
    both([2], 2, 5, 512, dropout=0.3)  # programs of one head each
for dtype in (torch.float32, torch.bfloat16, torch.float16) if thorough else (torch.bfloat16,):
    both([5, 0, 9], 6, 4, 16, dtype=dtype, self_loops=True)
for name in ("x", "target", "attention" if pairs else "source"):
    both([5, 1], 4, 2, 6, needs=[name], dropout=0.2)
runs = []
for _ in range(2):
    torch.manual_seed(4)
    runs.append(both([20, 2], 6, 2, 6, dtype=torch.float32, dropout=0.5, group=8))
(out, found), (again, others) = runs
assert torch.equal(out, again) and all(torch.equal(found[name], others[name]) for name in found)
indptr, indices = torch.tensor([0, 2, 4, 5]), torch.tensor([0, 1, 2, 3, 1])
x, source, target, attention = torch.randn(4, 3, 5), torch.randn(4, 3), torch.randn(3, 3, 5), torch.randn(3, 5)
x[0, 1, 2] = float("nan")  # which stays in its rows and its head
more = {"target": target, "attention": attention} if pairs else {"source": source, "target": target[..., 0].contiguous()}
expected = (attend_pairs_reference if pairs else attend_reference)(x, indptr, indices, **more)
found, _ = _attend_gpu.forward(x, indptr, indices, Scores(**more))
assert expected.isnan().any() and torch.allclose(found, expected, atol=1e-5, equal_nan=True)
print("equal")
"""


@pytest.mark.parametrize("kind", ["gat", "gatv2"])
def test_rows_and_gradients_equal_the_reference_under_the_interpreter(kind):
    run_interpreted(SCRIPT, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gat", "gatv2"])
def test_heads_of_several_programs_too(kind):
    run_interpreted(SCRIPT, kind, "thorough")


TYPES = {
    "fp32": ("source", "peak", "facts", "attention", "partial", "grad_source", "grad_attention"),
    "i64": ("indptr", "begins", "permutation", "seed", "shift", "whole_rows"),
    "i32": ("indices",),
}
KERNELS = {
    "forward.attend_kernel": {},
    "rows.rows_kernel": {"need_target": True, "need_attention": True},
    "columns.columns_kernel": {"need_x": True, "need_source": True},
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("pairs", "combine", "element", "placed"),
    [(False, False, "bf16", False), (True, False, "fp32", False), (True, True, "fp32", False), (False, False, "fp32", True)],
)
def test_kernels_compile_for_a_gpu(kernel, pairs, combine, element, placed, tmp_path, monkeypatch):
    triton = pytest.importorskip("triton", reason="needs triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    module, name = kernel.rsplit(".", 1)
    function = getattr(importlib.import_module(f"headrace.kernels._attend.triton_{module}"), name)
    constants = KERNELS[kernel] | {
        "kept": 2.0,
        "drops": True,
        "placed": placed,
        "slope": 0.2,
        "pairs": pairs,
        "wide": False,
        "combine": combine,
        "group": 1024,
        "heads": 4,
        "channels": 16,
        "lanes": 8,
        "head_block": 4,
        "channel_block": 16,
    }
    if "need_source" in constants:
        constants["need_source"] = not pairs
    types = {pointer: f"*{kind}" for kind, pointers in TYPES.items() for pointer in pointers}
    types |= dict.fromkeys(("x", "grad", "out", "grad_x"), f"*{element}")
    types |= dict.fromkeys(("target", "grad_target"), f"*{element}" if pairs else "*fp32")
    types |= dict.fromkeys(("key", "dropped"), "i64")
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in function.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(function.arg_names) if signature[n].startswith("*")}
    source = ASTSource(function, signature, {(function.arg_names.index(n),): value for n, value in constants.items()}, aligned)
    assembly = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1}).asm["ptx"]
    assert "atom." not in assembly  # the order of sums is fixed
    assert ".v4.b32" in assembly or element == "bf16"  # rows are read 16 bytes at a time
