"""Layers over chunks of nodes: shared by ranks that are threads, from any rows, to any table, with nothing held for too long."""

import copy
import gc
import sys
import weakref

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.store import ArrayStore, FileRows
from headrace.train import infer
from headrace.train.inference.layerwise.infer_rows import RowsInference
from headrace.train.inference.layerwise.tables import FileTable, MappedTable, MemoryTable, ScratchTable
from headrace.train.inference.layerwise.walk import Inputs, walk
from rank_threads import on_every_rank
from training_cases import MODELS

inference = sys.modules["headrace.train.inference.layerwise.infer"]  # the module, which the function of the same name hides


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return hr.generate.community(nodes=500, edges=3000, classes=3, features=12, seed=3)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of a few rows, and of a few seeds: 11 of each."""
    monkeypatch.setattr(inference, "_RANGE_BYTES", 4 * 32 * 47)
    monkeypatch.setattr(inference, "_SEEDS", 29)


def new_model(kind: str) -> hr.nn.GNN:
    torch.manual_seed(3)
    return hr.nn.GNN(12, 16, 3, layers=3, conv=kind, heads=4, norm="batch")


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("nodes", [None, [7, 7, 499, 0, *range(90, 10, -1)], [3], []], ids=["all", "few", "one", "none"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_get_the_bits_of_one_process(data, kind, nodes, size, narrow):
    model, told = new_model(kind), []
    wanted = infer(model, data, nodes, progress=lambda *done: told.append(done))

    def work(ranks):
        seen = []
        rows = infer(copy.deepcopy(model), data, nodes, progress=lambda *done: seen.append(done), ranks=ranks)
        return rows, seen

    for rows, seen in on_every_rank(size, work):
        assert torch.equal(rows, wanted)
        assert seen == told


class ThreadExchange:
    """Rows between ranks that are threads. Only tensors of one shape can be sent."""

    wire = torch.device("cpu")

    def __init__(self, ranks):
        self.ranks, self.calls = ranks, 0

    def all_gather(self, phase, tensor):
        self.calls += 1
        tensors = self.ranks.all_gather(tensor)
        assert phase == "inference"
        assert len({(tuple(one.shape), one.dtype) for one in tensors}) == 1
        return torch.cat(tensors)


@pytest.mark.parametrize("kind", ["sage", "gat"])
@pytest.mark.parametrize("nodes", [None, [7, 7, 499, 0, *range(90, 10, -1)], []], ids=["all", "few", "none"])
def test_rows_go_through_an_exchange_where_there_is_one(data, kind, nodes, narrow):
    model = new_model(kind)

    def work(ranks):
        exchange = ThreadExchange(ranks)
        return infer(copy.deepcopy(model), data, nodes, ranks=ranks, exchange=exchange), exchange.calls

    wanted = infer(model, data, nodes)
    for rows, calls in on_every_rank(3, work):
        assert torch.equal(rows, wanted)
        assert (calls > 3) == (kind == "sage")  # with attention a layer is one chunk, but for few nodes


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
@pytest.mark.parametrize("memory", [20_000, 40_000, 1 << 30])  # hidden rows in files, in memory, and all in one range
def test_ranks_share_rows_on_disk(data, tmp_path, kind, memory):
    data.save(tmp_path / "data")
    stored, folder = hr.open(tmp_path / "data"), tmp_path / "rows"
    folder.mkdir()
    model = new_model(kind)

    def work(ranks):
        job = RowsInference(stored.graph, FileRows.of_tensor(stored.x), memory=memory, folder=folder, ranks=ranks)
        return job(copy.deepcopy(model), torch.arange(500)), job.bytes_read

    ((wanted, alone),) = on_every_rank(1, work)
    for rows, read in on_every_rank(3, work):
        assert torch.equal(rows, wanted)
        assert read <= alone
        assert memory == 1 << 30 or read < 0.6 * alone
    assert not list(folder.iterdir())


def test_every_rank_computes_its_share(data, narrow):
    def work(ranks):
        model, calls = new_model("sage"), []
        model.layers[0].register_forward_hook(lambda _, inputs, out: calls.append((inputs[1].first, len(out))))
        infer(model, data, ranks=ranks)
        return calls[1:]  # after the look at how wide the layer is

    (alone,), shares = on_every_rank(1, work), on_every_rank(3, work)
    assert len(alone) > 6
    assert shares == [alone[rank::3] for rank in range(3)]


@pytest.mark.parametrize("at", ["forward", "progress", "table"])
@pytest.mark.parametrize("kind", [ValueError, torch.cuda.OutOfMemoryError])
def test_what_fails_on_one_rank_fails_on_all(data, narrow, at, kind):
    x = ArrayStore(data.x)

    class Double(nn.Module):
        def forward(self, x, block):
            return 2 * x

    def fail(*_):
        raise kind("no more")

    def work(ranks):
        bad = ranks.rank == 1
        model = nn.Module()
        model.layers = nn.ModuleList([Double(), Double()])
        if bad and at == "forward":
            model.layers[1].forward = fail

        def chunks(number, layer, rows):
            return (lambda begin=begin: Inputs(rows.rows[begin : begin + 50], data.graph) for begin in range(0, 500, 50))

        def table(number, first):
            return fail() if bad and at == "table" and number == 1 else MemoryTable(500, first)

        def progress(done, total):
            if bad and at == "progress" and done == total:  # after the last round
                fail()

        return walk(model, lambda: x, chunks=chunks, table=table, total=1000, progress=progress, ranks=ranks)

    errors = on_every_rank(3, work)
    assert [type(error) for error in errors] == [RuntimeError if kind is ValueError and r != 1 else kind for r in range(3)]
    assert str(errors[1]) == "no more"
    assert all(f"rank 1 failed in exact inference: {kind.__name__}: no more" in str(errors[rank]) for rank in (0, 2))


def test_a_table_is_let_go_of_when_the_next_is_complete(data):
    held = []

    class Look(nn.Module):
        def forward(self, x, block):
            gc.collect()
            held.append([one() is not None for one in stores])
            return x + 1

    model, stores = nn.Module(), []
    model.layers = nn.ModuleList([Look(), Look(), Look()])

    def store():
        stores.append(weakref.ref(rows := ArrayStore(data.x)))
        return rows

    class Table(MemoryTable):
        def rows(self):
            stores.append(weakref.ref(rows := super().rows()))
            return rows

    def chunks(number, layer, rows):
        return (lambda begin=begin: Inputs(rows.rows[begin : begin + 250], data.graph) for begin in (0, 250))

    found = walk(model, store, chunks=chunks, table=lambda _, first: Table(500, first), total=1500)
    assert torch.equal(found.rows, data.x + 1 + 1 + 1)
    assert held == [[True]] * 2 + [[False, True]] * 2 + [[False, False, True]] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["memory", "mapped", "scratch", "file"])
def test_tables_hold_what_was_written(tmp_path, dtype, kind):
    rows = torch.randn(13, 3).to(dtype)

    def new():
        if kind in ("memory", "mapped"):
            return {"memory": MemoryTable, "mapped": MappedTable}[kind](13, rows[:2])
        if kind == "scratch":
            return ScratchTable(13, 3, dtype, folder=tmp_path / "absent" / "folder")
        return FileTable(13, 3, dtype, place=tmp_path / "rows.npy")

    for sizes in ([13], [2, 11], [5, 0, 5, 3]):
        table = new()
        for piece in rows.split(sizes):
            table.append(piece)
        assert torch.equal(table.rows().gather(torch.arange(13)), rows)
        assert [place.name for place in tmp_path.iterdir()] == (["rows.npy"] if kind == "file" else [])
        (tmp_path / "rows.npy").unlink(missing_ok=True)
    table = new()
    table.append(rows[:4])
    table.abandon()
    assert not list(tmp_path.iterdir())
