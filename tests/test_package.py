"""What holds of the package as a whole."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import headrace as hr
from child import assert_same_digest_on_every_level
from headrace import _native


def test_public_names_are_there():
    for name in ("Graph", "Dataset", "open", "load", "generate", "sample", "loader", "kernels", "store", "pipeline"):
        assert name in hr.__all__
        assert hasattr(hr, name)


def test_the_native_module_links_no_torch():
    program = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("headrace._native", {_native.__file__!r})
spec.loader.exec_module(importlib.util.module_from_spec(spec))
print(any("torch" in line for line in open("/proc/self/maps")), "torch" in sys.modules)
"""
    maps = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert maps.stdout.split() == ["False", "False"]


def test_importing_headrace_needs_neither_pyg_nor_triton():
    program = """
import sys
from pathlib import Path
for name in ("torch_geometric", "triton", "torch_sparse", "dgl"): sys.modules[name] = None
import headrace as hr
data = hr.generate.community(nodes=50, edges=200, classes=2, features=3)
print(len(list(hr.loader.NeighborLoader(data, [2], batch_size=10))))
try: hr.loader.NeighborLoader(object(), [2])
except TypeError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("5\ndata must be")


def test_kernels_let_other_python_threads_run():
    """A kernel that held the GIL would keep the counter from moving."""
    program = """
import threading, time, torch, headrace as hr
x = torch.randn(200_000, 64)
graph = hr.Graph.from_edges(torch.randint(200_000, (4_000_000,)), torch.randint(200_000, (4_000_000,)), 200_000)
count, stop = 0, False
def tick():
    global count
    while not stop: count += 1; time.sleep(1e-4)
thread = threading.Thread(target=tick); thread.start(); time.sleep(0.05)
before = count; hr.kernels.aggregate(x, graph.indptr, graph.indices, threads=1); after = count
stop = True; thread.join(); print(after - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 3


@pytest.mark.parametrize("first", ["headrace", "torch"])
def test_import_order_does_not_matter(first):
    second = {"headrace": "torch", "torch": "headrace"}[first]
    subprocess.run([sys.executable, "-c", f"import {first}, {second}; headrace.Graph.from_edges([0], [1])"], check=True)


@pytest.mark.skipif(_native.level == "baseline", reason="needs a processor with AVX2: this one runs the baseline only")
def test_every_instruction_set_gives_the_same_bits():
    program = """
import hashlib, torch, headrace as hr
torch.manual_seed(0)
data = hr.generate.community(nodes=2000, edges=60_000, classes=4, features=100, seed=1)
sample = hr.sample.NeighborSampler(data.graph, [15, 20, -1], seed=3).sample(range(50))
print(hr._native.level)
digest = hashlib.sha256()
for t in (sample.nodes, sample.indptr, sample.indices): digest.update(t.numpy().tobytes())
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    for width in (3, 64, 100):
        x = data.x[:, :width].to(dtype).contiguous().requires_grad_()
        w = torch.rand(data.num_edges).to(torch.float64 if dtype == torch.float64 else torch.float32).requires_grad_()
        for reduce in ("sum", "mean", "max"):
            out = hr.kernels.aggregate(x, data.graph.indptr, data.graph.indices, reduce=reduce, weight=w)
            grads = torch.autograd.grad(out.float().square().sum(), (x, w))
            for t in (out, *grads): digest.update(t.detach().double().numpy().tobytes())
print(digest.hexdigest())
"""
    assert_same_digest_on_every_level("-c", program)


def test_the_widest_instruction_set_of_the_machine_is_used():
    expected = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability(), "baseline")
    assert _native.level == expected


def test_files_are_read_as_data_and_never_as_code():
    source = Path(hr.__file__).parent
    for file in source.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(import|from) (pickle|marshal|shelve|dill|cloudpickle)\b", text, re.MULTILINE), file
        assert "allow_pickle=True" not in text, file
        for call in re.findall(r"torch\.load\((?:[^()]|\([^()]*\))*\)", text):
            assert "weights_only=True" in call, (file, call)
