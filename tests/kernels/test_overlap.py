"""What a call writes shares no memory with what it reads: refused before anything is written."""

import numpy as np
import pytest
import torch

from headrace import _native, generate
from headrace._arrays import check_apart
from headrace.kernels import gather
from headrace.sample import NeighborSampler

NO_ROWS = np.zeros((0, 2), np.float32)


def table(rows=10, width=4):
    return torch.arange(float(rows * width)).view(rows, width)


def test_gather_refuses_its_own_rows_as_out():
    x = table()
    before = x.clone()
    with pytest.raises(ValueError, match="out overlaps x in memory"):
        gather(x, torch.arange(9, -1, -1), out=x)
    with pytest.raises(ValueError, match="out overlaps x"):
        gather(x, torch.tensor([0, 1]), out=x[8:])
    assert torch.equal(x, before)


def test_gather_refuses_its_ids_as_out():
    ids = torch.arange(6)
    with pytest.raises(ValueError, match="out overlaps ids"):
        gather(torch.arange(100, 110), ids, out=ids)


def test_gather_takes_the_neighborhood_of_its_rows():
    memory = table(14)
    x, out = memory[:10], memory[10:]
    ids = torch.tensor([3, 0, 9, 3])
    assert torch.equal(gather(x, ids, out=out), memory[:10][ids])
    assert gather(x, ids[:0], out=x[:0]).shape == (0, 4)


def test_edge_index_refuses_the_memory_of_its_sample():
    graph = generate.community(50, 400, classes=2, features=0).graph
    sample = NeighborSampler(graph, [5]).sample([1, 2])
    indices = torch.zeros(4 * sample.num_edges, dtype=torch.int32)
    indices[: sample.num_edges] = sample.indices
    with pytest.raises(ValueError, match="out overlaps indices"):
        _native.expand_csr(sample.indptr, indices[: sample.num_edges], indices.view(torch.int64).view(2, -1), 1)


def test_native_calls_refuse_outputs_that_overlap():
    indptr, indices = np.array([0, 1, 2]), np.array([1, 0])
    x = np.ones((2, 2), np.float32)
    options = {"ids": None, "weight": None, "position": None, "scale": None, "threads": 1}
    with pytest.raises(ValueError, match="out overlaps x"):
        _native.aggregate(x, indptr, indices, x, "sum", where=None, **options)
    out, where = np.zeros((2, 2), np.float32), np.zeros((2, 2), np.int32)
    with pytest.raises(ValueError, match="out overlaps where"):
        _native.aggregate(x, indptr, indices, where.view(np.float32), "max", where=where, **options)
    with pytest.raises(ValueError, match="out overlaps x"):
        _native.dropout(x, x, seed=0, dropped=1, scale=1.0, relu=False, gate=None, threads=1)
    with pytest.raises(ValueError, match="out overlaps cached"):
        _native.merge_rows(out, NO_ROWS, np.array([1, 0], np.int32), out, 1)
    with pytest.raises(ValueError, match="cached overlaps fetched"):
        _native.keep_rows(out, np.array([1, 0], np.int32), out, 1)
    values = np.arange(2)
    with pytest.raises(ValueError, match="out overlaps values"):
        _native.permute_entries(indptr, indptr, np.arange(2), values, values, 1)
    with pytest.raises(ValueError, match="delta overlaps grad"):
        _native.row_updates("sgd", x, np.zeros((2, 0), np.float32), x, np.zeros((2, 0), np.float32), lr=1.0, eps=0.0, threads=1)
    heads = x.reshape(2, 1, 2)
    scores = {"source": np.zeros((2, 1), np.float32), "target": np.zeros((2, 1), np.float32), "attention": None}
    how = {"slope": 0.2, "self_loops": False, "dropout": 0.0, "seed": 0, "threads": 1}
    with pytest.raises(ValueError, match="out overlaps x"):
        _native.attend(heads, indptr, indices, heads, np.zeros((2, 2, 1), np.float32), **scores, **how)
    chunk = np.ones((1, 2, 2), np.float32)
    fresh = {name: np.zeros((1, 2, 2), np.float32) for name in ("to_answer", "to_candidates")}
    with pytest.raises(ValueError, match="to_query overlaps answer"):
        _native.shared_softmax(np.ones((1, 2, 2), np.float32), chunk, chunk.copy(), hidden=None, to_query=chunk, **fresh, threads=1)


def test_check_apart_looks_at_bytes():
    memory = torch.zeros(16)
    check_apart(memory[:8], x=memory[8:], ids=None, none=memory[4:4])
    with pytest.raises(ValueError, match="out overlaps x"):
        check_apart(memory[:9], x=memory[8:])
