"""The sampler's kernels compiled for a GPU, without one: the interpreter runs what a compiler may refuse, and fuses nothing."""

import re

import pytest

pytest.importorskip("triton", reason="needs triton")

POINTERS = {
    "i32": ("nodes", "trees", "neighbors", "raw", "edge_trees", "stamp", "places", "indices"),
    "i64": (
        "request",
        "counts",
        "starts",
        "degrees",
        "row_ends",
        "positions",
        "indptr",
        "new_words",
        "take_words",
        "ids",
        "table",
        "edge_id",
    ),
    "fp32": ("weight",),
    "fp64": ("cumulative", "time", "seed_times", "since", "edge_times"),
}
RANKED = {"labor": True, "depends": True, "weighted": True, "disjoint": False, "keep": True}
NUMBERED = {"disjoint": True, "temporal": True, "inclusive": True, "latest": True, "replace": False, "last": False}
NUMBERED |= {"seeds": False, "each": False, "windowed": False, "size": 1024, "chunk": 256}
CASES = [
    ("_sampling.triton_rank.rank_kernel", {**RANKED, "rows": 8, "width": 64}),
    ("_sampling.triton_rank.rank_kernel", {**RANKED, "labor": False, "depends": False, "disjoint": True, "rows": 8, "width": 64}),
    ("_sampling.triton_rank.rank_long_kernel", {**RANKED, "labor": False, "depends": False, "rows": 4, "width": 64, "chunk": 512}),
    (
        "_sampling.triton_sample.draw_kernel",
        {"replace": True, "weighted": True, "disjoint": True, "keep": True, "rows": 32, "slots": 16},
    ),
    ("_sampling.triton_sample.draw_long_kernel", {"replace": False, "weighted": False, "disjoint": True, "chunk": 256}),
    ("_sampling.triton_number.number_kernel", NUMBERED),
    ("_sampling.triton_number.number_kernel", {**NUMBERED, "each": True, "windowed": True}),
    ("_sampling.triton_number.number_kernel", {**NUMBERED, "each": True, "windowed": True, "seeds": True}),
    ("_sampling.triton_number.relabel_kernel", {"each": True, "identify": True, "timed": True, "size": 1024}),
    ("_sampling.triton_place.place_kernel", {"of": "all edges", "size": 1024}),
]


@pytest.mark.parametrize(("kernel", "constants"), CASES)
def test_kernels_compile_for_a_gpu_and_fuse_nothing(kernel, constants, tmp_path, monkeypatch):
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    module, name = kernel.rsplit(".", 1)
    function = getattr(importlib.import_module(f"headrace.kernels.{module}"), name)
    types = {pointer: f"*{kind}" for kind, pointers in POINTERS.items() for pointer in pointers}
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in function.arg_names}
    source = ASTSource(function, signature, {(function.arg_names.index(n),): value for n, value in constants.items()})
    options = {"num_warps": 4, "enable_fp_fusion": False}
    assembly = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    assert not re.search(r"fma\.rn\.f(32|64)|div\.(full|approx)|\.ftz", assembly)
    assert ("div.rn.f32" in assembly) == (module == "_sampling.triton_rank")  # IEEE division, as the CPU's
