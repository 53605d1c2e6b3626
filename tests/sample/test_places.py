"""Where a sampler works: a pure choice, and what is said when there is no GPU, or no Triton."""

import sys

import pytest
import torch

import headrace as hr
from headrace.sample.gpu.launch import gpu_of
from headrace.sample.places import choose

GIB = 2**30


@pytest.mark.parametrize(
    ("options", "mode", "reason"),
    [
        ({}, "cpu", "no device"),
        ({"device": "cpu"}, "cpu", "asked for"),
        ({"device": "cpu", "pinned": True}, "cpu", "asked for"),
        ({"device": "cuda", "mode": "cpu"}, "cpu", "asked for"),
        ({"pinned": True}, "uva", "page-locked"),
        ({"pinned": True, "device": "cuda", "free_bytes": 8 * GIB}, "uva", "page-locked"),
        ({"graph_device": "cuda"}, "gpu", "lies on the GPU"),
        ({"graph_device": "cuda", "device": "cuda", "mode": "gpu"}, "gpu", "lies on the GPU"),
        ({"mode": "gpu"}, "gpu", "asked for"),
        ({"mode": "uva", "device": "cuda"}, "uva", "asked for"),
        ({"device": "cuda", "graph_bytes": 2 * GIB, "free_bytes": 4 * GIB}, "gpu", "within half of the 4.0 GiB"),
        ({"device": "cuda", "graph_bytes": 2 * GIB + 1, "free_bytes": 4 * GIB}, "uva", "more than half"),
    ],
)
def test_a_place_is_chosen_for_a_reason(options, mode, reason):
    place = choose(**options)
    assert place.mode == mode
    assert reason in place.reason


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"mode": "disk"}, "mode must be"),
        ({"device": "mps"}, "a CPU or a CUDA GPU"),
        ({"device": "cpu", "mode": "gpu"}, "give device='cuda'"),
        ({"graph_device": "cuda", "mode": "uva"}, r"use graph.to\('cpu'\)"),
        ({"graph_device": "cuda", "device": "cpu"}, "device='cpu' needs it in host memory"),
        ({"device": "cuda", "graph_bytes": 1}, "free_bytes"),
    ],
)
def test_contradictions_are_named(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        choose(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
@pytest.mark.parametrize("options", [{"device": "cuda"}, {"mode": "gpu"}, {"mode": "uva"}, {"device": "cuda:1", "mode": "gpu"}])
def test_without_a_gpu_a_sampler_says_so(options):
    graph = hr.Graph.from_edges([0, 1], [1, 0])
    with pytest.raises(ValueError, match="torch sees no GPU here"):
        hr.sample.NeighborSampler(graph, [2], **options)


def test_without_triton_a_sampler_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(RuntimeError, match="pip install triton"):
        gpu_of(torch.device("cuda"))
