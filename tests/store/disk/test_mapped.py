"""Which file a tensor is mapped from."""

import sys

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.store import FileRows


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc as Linux has it")
def test_a_mapped_tensor_knows_its_file(tmp_path):
    hr.generate.community(nodes=4000, edges=8000, classes=3, features=47).save(tmp_path / "data")
    stored = hr.open(tmp_path / "data")
    rows = FileRows.of_tensor(stored.x)
    assert rows.path.name.startswith("x.")
    ids = torch.tensor([7, 0, 7, 3999])
    assert torch.equal(rows.gather(ids), stored.x[ids])
    assert torch.equal(FileRows.of_tensor(stored.x[100:]).gather(ids[:3]), stored.x[100:][ids[:3]])
    assert FileRows.of_tensor(stored.x[:, :3]) is None  # rows do not follow each other
    assert FileRows.of_tensor(stored.x.clone()) is None
    assert FileRows.of_tensor(torch.empty(0, 3)) is None
    np.save(tmp_path / "x.npy", np.zeros((500, 12), np.float32))
    changed = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    assert FileRows.of_tensor(changed) is not None
    changed[3, 3] = 1.0  # in memory only: the file does not have it
    assert FileRows.of_tensor(changed) is None
    gone = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    (tmp_path / "x.npy").unlink()
    assert FileRows.of_tensor(gone) is None
