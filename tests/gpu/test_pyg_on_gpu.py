"""`accelerate` on a GPU: whole graphs and sampled batches, trimmed or not, against PyG's own layers."""

import copy

import pytest
import torch

pytest.importorskip("torch_geometric")

import torch_geometric.nn as pyg
from torch_geometric.data import Data

from headrace.loader import NeighborLoader
from headrace.pyg import accelerate
from headrace.pyg.accelerate import LAYERS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 5000, (2, 60_000), generator=generator)
    return Data(x=torch.randn(5000, 32, generator=generator), edge_index=edge_index)


def check(theirs, ours, x, edge_index, seeds):
    found = []
    for model in (theirs, ours):
        model.zero_grad()
        out = model(x, edge_index)[:seeds]
        out.square().mean().backward()
        found.append([out.detach(), *(p.grad for p in model.parameters())])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()) + 1e-6)


@pytest.mark.parametrize("make", [pyg.GraphSAGE, pyg.GCN, pyg.GIN, pyg.GAT])
@pytest.mark.parametrize("trim", [False, True])
def test_sampled_batches_on_the_device(data, make, trim, monkeypatch):
    for layer in LAYERS:
        monkeypatch.setattr(layer, "least_on_gpu", 0)
    more = {"norm": None} if make is pyg.GIN else {}
    theirs = make(32, 64, 3, 8, **more).cuda()
    ours = copy.deepcopy(theirs)
    accelerate(ours, trim=trim)
    for batch in list(NeighborLoader(data, [6, 5, 4], torch.arange(600), batch_size=200, device="cuda")):
        assert batch.edge_index.is_cuda
        check(theirs, ours, batch.x, batch.edge_index, batch.batch_size)
        if trim:
            assert len(ours(batch.x, batch.edge_index)) == batch.batch_size


def test_a_whole_graph_is_computed_whole_with_trim_too(data):
    theirs = pyg.GraphSAGE(32, 64, 2, 8).cuda()
    ours = copy.deepcopy(theirs)
    accelerate(ours, trim=True)
    check(theirs, ours, data.x.cuda(), data.edge_index.cuda(), data.num_nodes)
