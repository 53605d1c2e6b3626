"""Exact inference with the model on a GPU: shared by ranks, from rows on disk, and on the CPU where the GPU has no room."""

import copy
import sys

import pytest
import torch

import headrace as hr
from headrace.store import FileRows
from headrace.train import infer
from headrace.train.inference.layerwise.infer_rows import RowsInference
from rank_threads import on_every_rank

pytestmark = pytest.mark.gpu
inference = sys.modules["headrace.train.inference.layerwise.infer"]


@pytest.fixture(scope="module")
def data():
    return hr.generate.community(nodes=2000, edges=20_000, classes=5, features=32, seed=1)


def new_model(kind):
    torch.manual_seed(0)
    return hr.nn.GNN(32, 64, 5, layers=2, conv=kind, norm="batch").eval()


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
@pytest.mark.parametrize("nodes", [None, list(range(0, 2000, 7))])
def test_ranks_get_the_bits_of_one_process(data, kind, nodes, monkeypatch):
    monkeypatch.setattr(inference, "_RANGE_BYTES", 4 * 96 * 300)
    monkeypatch.setattr(inference, "_SEEDS", 50)
    model = new_model(kind).cuda()
    wanted = infer(model, data, nodes)
    results = on_every_rank(3, lambda ranks: infer(copy.deepcopy(model), data, nodes, ranks=ranks))
    assert all(torch.equal(rows, wanted) for rows in results)


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_rows_on_disk_give_what_rows_in_memory_do(data, kind, tmp_path):
    data.save(tmp_path / "data")
    stored, model = hr.open(tmp_path / "data"), new_model(kind)
    nodes = torch.arange(0, 2000, 3)
    wanted = infer(model, stored, nodes)
    for memory in (200_000, 1 << 30):
        rows = RowsInference(stored.graph, FileRows.of_tensor(stored.x), memory=memory, folder=tmp_path)(model.cuda(), nodes)
        assert rows.device.type == "cpu"
        torch.testing.assert_close(rows, wanted, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("size", [1, 3])
def test_without_room_on_the_gpu_of_one_rank_all_compute_on_the_cpu(data, size):
    model = new_model("sage")
    wanted = infer(model, data)

    def work(ranks):
        own = copy.deepcopy(model).cuda()

        def full(layer, inputs):
            if inputs[0].is_cuda and ranks.rank == 0:
                raise torch.cuda.OutOfMemoryError("no room")

        own.layers[1].register_forward_pre_hook(full)
        return infer(own, data, ranks=ranks)

    for rows in on_every_rank(size, work):
        torch.testing.assert_close(rows, wanted)
