"""Exact inference on rows that are on disk, in bounded memory."""

import pytest
import torch

import headrace as hr
from headrace.store import FileRows
from headrace.train import infer
from headrace.train.inference.layerwise.infer_rows import RowsInference

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(("kind", "memory"), [("sage", 1), ("sage", 40_000), ("sage", 1 << 30), ("gcn", 40_000), ("gat", 40_000)])
def test_inference_from_rows_equals_that_in_memory(tmp_path, kind, memory):
    hr.generate.community(nodes=500, edges=3000, classes=3, features=47, seed=3).save(tmp_path / "data")
    stored, folder = hr.open(tmp_path / "data"), tmp_path / "rows"
    folder.mkdir()
    torch.manual_seed(1)
    model = hr.nn.GNN(47, 16, 3, layers=3, conv=kind, heads=4, norm="batch")
    few = torch.tensor([5, 1, 5, 499, 0], dtype=torch.int32)
    for nodes in (few, torch.arange(500)) if memory > 1 else (few,):
        job = RowsInference(stored.graph, FileRows.of_tensor(stored.x), memory=memory, folder=folder)
        seen: list[tuple[int, int]] = []
        found = job(model, nodes, lambda done, total, seen=seen: seen.append((done, total)))
        torch.testing.assert_close(found, infer(model, stored, nodes), rtol=1e-4, atol=1e-5)
        assert seen[-1][0] == seen[-1][1]
    assert model.training
    assert not list(folder.iterdir())
    assert len(RowsInference(stored.graph, FileRows.of_tensor(stored.x), memory=memory)(model, few[:0])) == 0
    if memory == 1 << 30:  # with room for all, each row is read once, and those of the first node to see how wide a layer is
        assert 500 <= job.bytes_read / (47 * 4) <= 500 + 1 + len(stored.graph.neighbors(0))
