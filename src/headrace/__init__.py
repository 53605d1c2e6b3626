"""Headrace: graph neural networks and graph embeddings, wherever the data fits."""

import os as _os

# OpenMP threads spin for milliseconds before they sleep, unless told otherwise. On a machine with other work that turns a
# parallel region of one millisecond into ten: the thread it waits for stands behind the one that spins. This must be set
# before OpenMP is loaded, so it helps programs that import headrace before torch; it never changes a result.
if "OMP_WAIT_POLICY" not in _os.environ:
    _os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Torch asks for huge pages for its large CPU tensors if told to: 512 times fewer page faults. It reads this at its first tensor.
_os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from headrace import _native

# Large tensors of all threads come from one heap of malloc, and stay in it: in heaps of their own, which glibc gives to threads,
# they have no room, and a step that overlaps two threads spent a third of its time on fresh pages.
if "MALLOC_ARENA_MAX" not in _os.environ and "glibc.malloc.arena_max" not in _os.environ.get("GLIBC_TUNABLES", ""):
    _native.share_one_heap()

from headrace import cluster, kernels, loader, nn, pipeline, plan, ranks, sample, snapshots, store, temporal, train
from headrace.graph import Dataset, EventStream, Graph, HeteroGraph, Snapshots, generate, load, reorder
from headrace.graph import open_dataset as open

__version__ = "0.1.0"

__all__ = [
    "Dataset",
    "EventStream",
    "Graph",
    "HeteroGraph",
    "Snapshots",
    "cluster",
    "generate",
    "kernels",
    "load",
    "loader",
    "nn",
    "open",
    "pipeline",
    "plan",
    "ranks",
    "reorder",
    "sample",
    "snapshots",
    "store",
    "temporal",
    "train",
]
