"""The kernels of aggregation compiled for a GPU, without one: what the interpreter runs, a compiler may refuse or cut to pieces."""

import importlib
import re

import pytest

pytest.importorskip("triton", reason="needs triton")

KINDS = {
    "i64": ("begins", "ends", "forward", "indptr", "owners", "heavy", "firsts", "degrees_begin"),
    "i32": ("indices", "ids", "position", "taken", "where", "slots", "neighbors", "bits"),
    "sum": ("weight", "scale", "row_scale", "parts"),
    "row": ("x", "out", "grad"),
}
PLAIN = dict.fromkeys(("by_id", "weighted", "placed", "scaled", "row_scaled", "chosen", "mean"), False)
ALL = dict.fromkeys(PLAIN, True)
TILE = {"width": 100, "entries": 8, "columns": 128, "stages": 1, "bounded": False}
CASES = [
    ("_aggregate.triton_sum.sum_kernel", "fp32", {**PLAIN, **TILE, "rows": 1}, r"ld\.global\.v4\.b32"),
    (
        "_aggregate.triton_sum.sum_kernel",
        "bf16",
        {**PLAIN, **TILE, "rows": 1},
        r"ld\.global\.v2\.b32",
    ),  # 100 of them are 8 bytes aligned
    ("_aggregate.triton_sum.sum_kernel", "fp32", {**PLAIN, **TILE, "rows": 1, "bounded": True}, r"ld\.global\.v4\.b32"),
    ("_aggregate.triton_sum.sum_kernel", "fp64", {**ALL, **TILE, "width": 47, "rows": 4, "bounded": True}, r"st\.global"),
    ("_aggregate.triton_sum.sum_kernel", "fp64", {**ALL, **TILE, "width": 47, "rows": 4}, r"st\.global"),
    ("_aggregate.triton_sum.add_groups_kernel", "bf16", {**ALL, **TILE}, r"ld\.global\.v4\.b32"),
    ("_aggregate.triton_max.max_kernel", "fp64", {**ALL, **TILE}, r"ld\.global\.v2\.b64"),
    ("_aggregate.triton_max.largest_group_kernel", "bf16", {**TILE, "group": 64}, r"ld\.global\.v4\.b32"),
    ("_aggregate.triton_dots.dots_kernel", "fp32", {**ALL, **TILE, "entries": 16}, r"ld\.global\.v4\.b32"),
    ("_aggregate.triton_window.window_kernel", "bf16", {**PLAIN, **TILE, "entries": 32, "window": 16}, r"mma\.sync[\w.]*bf16"),
    (
        "_aggregate.triton_window.window_kernel",
        "bf16",
        {**PLAIN, **TILE, "entries": 32, "window": 16, "bounded": True},
        r"mma\.sync[\w.]*bf16",
    ),
    (
        "_aggregate.triton_window.window_kernel",
        "fp32",
        {**ALL, **TILE, "entries": 32, "window": 32},
        r"fma\.rn\.f32",
    ),  # no tf32: exact
]


@pytest.mark.parametrize(("kernel", "row", "constants", "holds"), CASES)
def test_kernels_compile_and_read_whole_vectors(kernel, row, constants, holds, tmp_path, monkeypatch):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    module, name = kernel.rsplit(".", 1)
    function = getattr(importlib.import_module(f"headrace.kernels.{module}"), name)
    constants = {n: value for n, value in constants.items() if n in function.arg_names}
    types = {pointer: f"*{kind}" for kind, pointers in KINDS.items() for pointer in pointers}
    types = {n: {"*row": f"*{row}", "*sum": "*fp64" if row == "fp64" else "*fp32"}.get(kind, kind) for n, kind in types.items()}
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in function.arg_names}
    place = function.arg_names.index
    aligned = {(place(n),): [["tt.divisibility", 16]] for n, kind in signature.items() if kind.startswith("*")}
    source = ASTSource(function, signature, {(place(n),): value for n, value in constants.items()}, aligned)
    warps = 4 if "window" in constants else 1
    assembly = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}).asm["ptx"]
    assert re.search(holds, assembly)
    assert not re.search(r"tf32|\bred\.|atom\.", assembly)
