"""Native calls that run out of memory inside their parallel loops: run by test_out_of_memory.py, in a process of its own.

Each case makes its arguments, then the address space is limited to what the process has and a margin: enough for what the call
allocates before its loop, and less than what a thread asks for in it. The call must raise MemoryError, leave nothing behind, and
succeed once the limit is gone.
"""

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from native import load_native

_native = load_native()
MIB = 1 << 20
Call = Callable[[], Any]
options = {"ids": None, "weight": None, "position": None, "scale": None}


def virtual_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def two_hubs(entries: int) -> tuple[np.ndarray, np.ndarray]:
    """Two nodes with half of the entries each."""
    return np.array([0, entries // 2, entries]), np.arange(entries, dtype=np.int32) % 2


def sampler() -> tuple[Call, int]:
    indptr, indices = two_hubs(1 << 23)
    sampler, pool = _native.Sampler(indptr, indices, [1 << 21], replace=False, hash=False), _native.Pool.create(0)
    seeds = np.array([0, 1])

    def call() -> None:
        try:
            sampler.sample(seeds, pool, seed=0, epoch=0, batch=0, positions=False, threads=2)
        finally:
            assert pool.stats()["in_use"] == 0

    return call, 80 * MIB


def hetero_sampler() -> tuple[Call, int]:
    indptr, indices = two_hubs(1 << 23)
    sampler = _native.HeteroSampler(
        [2], [indptr], [indices], source=[0], target=[0], fanouts=[[1 << 21]], hops=1, replace=False, hash=[False]
    )
    pool, seeds = _native.Pool.create(0), [np.array([0, 1])]

    def call() -> None:
        try:
            sampler.sample(seeds, pool, seed=0, epoch=0, batch=0, positions=False, threads=2)
        finally:
            assert pool.stats()["in_use"] == 0

    return call, 160 * MIB


def draw_part() -> tuple[Call, int]:
    indptr, indices = two_hubs(1 << 23)
    pool, nodes, one = _native.Pool.create(0), np.arange(2, dtype=np.int32), np.ones(1, np.uint64)
    how = {
        "sizes": np.array([2]),
        "keys": one,
        "pool": pool,
        "fanout": 1 << 21,
        "hop": 0,
        "replace": False,
        "threads": 2,
        "num_nodes": 2,
    }

    def call() -> None:
        try:
            _native.draw_part(indptr, indices, nodes, np.array([0, 1]), **how)
        finally:
            assert pool.stats()["in_use"] == 0

    return call, 80 * MIB


def build_csr() -> tuple[Call, int]:
    ends = np.zeros(1 << 15, np.int64)
    how = {"undirected": False, "deduplicate": False, "self_loops": "keep", "positions": False}
    return lambda: _native.build_csr(ends, ends, 1 << 26, wide_index=False, **how, threads=2), 600 * MIB


def max_gradient() -> tuple[Call, int]:
    grad = np.zeros((2, 1 << 22), np.float16)
    out, where = np.zeros_like(grad), np.zeros(grad.shape, np.int32)
    indptr, indices = np.array([0, 1, 2]), np.array([0, 1])
    return lambda: _native.max_gradient(grad, indptr, indices, indices, indptr, where, out, weight=None, threads=2), 16 * MIB


def window_reuse() -> tuple[Call, int]:
    indptr, indices = two_hubs(1 << 23)
    return lambda: _native.window_reuse(indptr, indices, None, window=1, sample=2, threads=2), 8 * MIB


def simulate_lru() -> tuple[Call, int]:
    indptr = np.zeros((1 << 23) + 1, np.int64)
    return lambda: _native.simulate_lru(indptr, np.zeros(0, np.int32), None, capacity=1, windows=1, threads=2), 8 * MIB


def attend() -> tuple[Call, int]:
    heads = 1 << 14
    x, out = np.zeros((2, heads, 1), np.float32), np.zeros((2, heads, 1), np.float32)
    scores = {"source": np.zeros((2, heads), np.float32), "target": np.zeros((2, heads), np.float32), "attention": None}
    how = {"slope": 0.2, "self_loops": False, "dropout": 0.0, "seed": 0}
    peak, indptr, indices = np.zeros((2, 2, heads), np.float32), np.array([0, 1, 2]), np.array([0, 1])
    return lambda: _native.attend(x, indptr, indices, out, peak, **scores, **how, threads=2), 16 * MIB


def shared_softmax() -> tuple[Call, int]:
    query, candidates = np.zeros((1, 512, 16), np.float32), np.zeros((1, 1 << 15, 16), np.float32)
    to = {"to_query": np.zeros_like(query), "to_answer": np.zeros_like(query), "to_candidates": np.zeros_like(candidates)}
    return lambda: _native.shared_softmax(query, query.copy(), candidates, hidden=None, **to, threads=2), 16 * MIB


CASES = [sampler, hetero_sampler, draw_part, build_csr, max_gradient, window_reuse, simulate_lru, attend, shared_softmax]


def outcome(call: Call, margin: int) -> str:
    """How the call ended under a limit of address space."""
    resource.setrlimit(resource.RLIMIT_AS, (virtual_memory() + margin, resource.RLIM_INFINITY))
    try:
        call()
    except Exception as error:
        return type(error).__name__
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return "nothing"


def main() -> None:
    _native.id_range(np.zeros(1 << 20, np.int64), 2)  # the threads, which libgomp cannot do without, are there
    for case in CASES:
        print(case.__name__, file=sys.stderr, flush=True)
        call, margin = case()
        first = outcome(call, margin)
        before = virtual_memory()
        again = {outcome(call, margin) for _ in range(4)}
        leaked = virtual_memory() - before
        call()
        print(json.dumps({"case": case.__name__, "raised": sorted({first, *again}), "leaked": leaked}), flush=True)


if __name__ == "__main__":
    main()
