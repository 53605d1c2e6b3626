"""The kernels of attention over events compiled for a GPU, without one: the interpreter runs what a compiler may refuse."""

import importlib

import pytest

pytest.importorskip("triton", reason="needs triton")

INT64 = {"indptr", "indices", "edge_id", "seed", "t_indptr", "t_rows", "t_position"}
NUMBERS = {"rows": "i32", "key": "i64", "seed_on_device": "i32", "dropped": "i64"}
WIDTHS = {"heads": 2, "channels": 100, "times": 101, "x_block": 128, "time_block": 128}
EDGES = [
    {"edges": 0, "edge_block": 1, "by_id": False, "drops": False, "lanes": 16},
    {"edges": 172, "edge_block": 256, "by_id": True, "drops": True, "lanes": 16},
]
KERNELS = [
    ("triton_forward.forward_kernel", {}),
    ("triton_gradient.rows_kernel", {"need_time": True}),
    ("triton_gradient.columns_kernel", {}),
]


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize(("kernel", "more"), KERNELS)
def test_kernels_compile_for_a_gpu(kernel, more, edges, tmp_path, monkeypatch):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    module, name = kernel.split(".")
    function = getattr(importlib.import_module(f"headrace.kernels._attend_time.{module}"), name)
    constants = {**WIDTHS, **edges, **more, "kept": 1 / 0.9, "slope": 0.2, "wide": False}
    signature = {
        n: "constexpr" if n in constants else NUMBERS.get(n, "*i64" if n in INT64 else "*fp32") for n in function.arg_names
    }
    source = ASTSource(function, signature, {(function.arg_names.index(n),): value for n, value in constants.items()})
    assembly = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "enable_fp_fusion": False})
    assert ".target sm_90" in assembly.asm["ptx"]
