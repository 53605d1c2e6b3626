"""`ColumnSlice`: columns of every node, of any width, and the bounds that cut features into slices."""

import numpy as np
import pytest
import torch

from headrace.store import ArrayStore, Cached, ColumnSlice, FileRows, Store, WritableStore, column_bounds, column_slice

X = torch.randn(23, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("features", [1, 2, 7, 100, 602])
@pytest.mark.parametrize("parts", [1, 2, 3, 7, 64])
def test_bounds_are_even_and_in_order_and_leave_nothing_out(features, parts):
    if parts > features:
        with pytest.raises(ValueError, match=f"{features} columns of features cannot be cut into {parts} parts: choose at most"):
            column_bounds(features, parts)
        return
    bounds = column_bounds(features, parts)
    assert [column for begin, end in bounds for column in range(begin, end)] == list(range(features))
    widths = [end - begin for begin, end in bounds]
    assert max(widths) - min(widths) <= 1
    assert bounds == [(p * features // parts, (p + 1) * features // parts) for p in range(parts)]


@pytest.mark.parametrize("parts", [0, -1])
def test_there_is_at_least_one_part(parts):
    with pytest.raises(ValueError, match=f"parts must be at least 1, not {parts}"):
        column_bounds(4, parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.bool])
def test_slices_together_are_the_rows(dtype):
    x, ids = X.to(dtype), torch.tensor([22, 0, 3, 3])
    stores = [ColumnSlice(x, begin, end) for begin, end in column_bounds(7, 3)]
    assert torch.equal(torch.cat([store.gather(ids) for store in stores], dim=1), x[ids])
    for store, columns in zip(stores, column_bounds(7, 3), strict=True):
        assert isinstance(store, Store)
        assert not isinstance(store, WritableStore)
        assert (store.columns, store.num_features, store.dtype, len(store)) == (columns, 7, dtype, 23)
        assert store.table.is_contiguous()
        assert torch.equal(torch.cat([piece for _, piece in store.scan(rows=5)]), x[:, slice(*columns)])


def test_columns_are_copied_in_pieces_from_a_memory_map(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    seen = []
    monkeypatch.setattr(column_slice, "pieces", lambda count, size: seen.append((count, size)) or [(0, 10), (10, 20), (20, 23)])
    store = ColumnSlice(mapped, 2, 7)
    assert seen == [(23, 28)]
    assert torch.equal(store.table, X[:, 2:7])
    strided = ColumnSlice(X.T.contiguous().T, 0, 3)
    assert torch.equal(strided.table, X[:, :3])


def test_rows_that_are_a_slice_already_are_taken_as_they_are(tmp_path):
    part = X[:, 2:5].contiguous()
    store = ColumnSlice.of(part, 2, of=7)
    assert (store.columns, store.num_features) == ((2, 5), 7)
    assert store.table.data_ptr() == part.data_ptr()
    np.save(tmp_path / "part.npy", part.numpy())
    file = ColumnSlice.of(FileRows(tmp_path / "part.npy"), 2, of=7)
    assert file.table is None
    ids, out = torch.tensor([4, 4, 20]), torch.empty(3, 3)
    assert file.gather(ids, out=out) is out
    assert torch.equal(out, store.gather(ids))
    assert torch.equal(Cached(file, 0.5).gather(ids), out)
    assert torch.equal(ColumnSlice.of(ArrayStore(part), 4, of=7).gather(ids), out)


def test_columns_that_are_not_there_are_refused():
    for begin, end in ((-1, 2), (3, 8), (5, 4)):
        with pytest.raises(ValueError, match=rf"columns {begin} to {end} are not within the 7 columns of x"):
            ColumnSlice(X, begin, end)
    with pytest.raises(ValueError, match="columns 5 to 8 are not within 7 columns"):
        ColumnSlice.of(X[:, :3], 5, of=7)
    with pytest.raises(ValueError, match=r"x must have rows and columns, not shape \(23,\)"):
        ColumnSlice(X[:, 0], 0, 1)
    with pytest.raises(ValueError, match=r"rows must have columns: their shape is \(23,\)"):
        ColumnSlice.of(X[:, 0].contiguous(), 0, of=7)
    with pytest.raises(IndexError, match="out of range"):
        ColumnSlice(X, 0, 2).gather(torch.tensor([23]))
