"""Stores refuse an `out` that shares memory with their rows or with the ids, before anything is written."""

import numpy as np
import pytest
import torch

from headrace.store import ArrayStore, Cached, FileRows, Tiered, TrainedArray


def table(rows=10, width=4):
    return torch.arange(float(rows * width)).view(rows, width)


def stores(folder):
    rows = table()
    np.save(folder / "rows.npy", rows.numpy())
    for mapped in (False, True):
        file = FileRows(folder / "rows.npy", mapped=mapped)
        yield file, file._map if mapped else None
    yield ArrayStore(rows), rows
    cached = Cached(ArrayStore(table()), 1.0)
    yield cached, cached._rows.rows
    tiered = Tiered(table(), device="cpu", device_cache=0.5)
    yield tiered, tiered._memory.rows


def test_stores_refuse_their_rows_and_ids_as_out(tmp_path):
    for store, rows in stores(tmp_path):
        ids = torch.tensor([4, 2])
        expected = table()[ids]
        assert torch.equal(store.gather(ids, out=torch.empty(2, 4)), expected), store
        if rows is not None:
            with pytest.raises(ValueError, match="overlaps"):
                store.gather(ids, out=rows[:2])
        memory = torch.tensor([4, 2, 0, 0])
        with pytest.raises(ValueError, match="overlaps ids"):
            store.gather(memory[:2], out=memory.view(torch.float32).view(2, 4))
        assert memory.tolist() == [4, 2, 0, 0], store


def test_added_rows_are_not_those_of_the_table():
    rows = TrainedArray.create(4, 2, state=1, init=(1.0, 0))
    with pytest.raises(ValueError, match="rows overlaps the table's rows"):
        rows.add_(torch.tensor([1, 2]), rows.rows[:2], torch.zeros(2, 1))
