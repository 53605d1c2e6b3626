import errno
import os
import sys
import tempfile

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.loader import NeighborLoader, WholeBatch
from headrace.train import infer
from training_cases import MODELS

inference = sys.modules["headrace.train.inference.layerwise.infer"]  # the module, which the function of the same name hides


def awkward() -> hr.Dataset:
    """300 nodes: loops, edges that stand twice, a hub, nodes without edges in or out."""
    draw = torch.Generator().manual_seed(5)
    src, dst = torch.randint(0, 280, (2, 2500), generator=draw)
    dst = dst.clamp_max(260)  # 261 up to 299: nobody's target
    loops = torch.arange(0, 60, 2)
    src, dst = (
        torch.cat([part, loops, src[:200], more]) for part, more in ((src, torch.arange(280)), (dst, torch.full((280,), 7)))
    )
    return hr.Dataset(hr.Graph.from_edges(src, dst, 300), x=torch.randn(300, 12, generator=draw))


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return awkward()


def made(kind: str, layers: int = 3, **more) -> hr.nn.GNN:
    torch.manual_seed(3)
    model = hr.nn.GNN(12, 16, 5, layers=layers, conv=kind, heads=4, dropout=0.5, norm="batch", residual=True, **more)
    model.train()
    with torch.no_grad():  # norms that have seen something
        for _ in range(2):
            model(WholeBatch(awkward(), layers))
    return model


def whole(model: nn.Module, data: hr.Dataset) -> torch.Tensor:
    """A forward of the whole graph: what inference must equal."""
    model.eval()
    with torch.no_grad():
        return model(WholeBatch(data, len(model.layers)))


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of a few rows, and of a few seeds."""
    monkeypatch.setattr(inference, "_RANGE_BYTES", 4 * 32 * 47)  # 47 rows where 16 columns become 16
    monkeypatch.setattr(inference, "_SEEDS", 29)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("layers", [1, 3])
def test_all_rows_equal_a_forward_of_the_whole_graph(data, kind, layers):
    model = made(kind, layers)
    torch.testing.assert_close(infer(model, data), whole(model, data), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_all_rows_equal_batches_of_whole_neighborhoods(data, kind):
    model = made(kind)
    found = infer(model, data)
    model.eval()
    nodes = torch.tensor([299, 0, 7, 261, *range(40, 90)])  # isolated, with a loop, the hub, without edges in
    with torch.no_grad():
        parts = [model(batch) for batch in NeighborLoader(data, [-1, -1, -1], nodes, batch_size=11)]
    torch.testing.assert_close(torch.cat(parts), found[nodes], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    "nodes",
    [[299], [7, 7, 7, 261, 0, 2, 7], list(range(140)), list(range(299, 100, -1)), [5] * 400, []],
    ids=["one", "repeated", "few", "many, backwards", "one, often", "none"],
)
@pytest.mark.parametrize("ranges", ["wide", "narrow"])
def test_rows_of_some_nodes_are_those_rows_of_all(data, kind, nodes, ranges, request):
    if ranges == "narrow":
        request.getfixturevalue("narrow")
    model = made(kind)
    found = infer(model, data, nodes)
    assert found.shape == (len(nodes), 5)
    torch.testing.assert_close(found, whole(model, data)[torch.tensor(nodes, dtype=torch.int64)], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_ranges_of_rows_and_tables_in_files_change_nothing(data, kind, narrow, monkeypatch):
    model, files, calls = made(kind), [], []
    real, rows = tempfile.TemporaryFile, hr.Graph.rows

    def remember(*arguments, **more):
        files.append(real(*arguments, **more))
        return files[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", remember)
    monkeypatch.setattr(hr.Graph, "rows", lambda self, begin, end: calls.append((begin, end)) or rows(self, begin, end))
    found = infer(model, data, memory=1000)
    if kind != "gat":  # which is computed in one piece
        assert len(files) == 3
        assert {(0, 47), (47, 94), (282, 300)} <= set(calls)
    torch.testing.assert_close(found, whole(model, data), atol=1e-5, rtol=1e-5)
    files.clear()
    kept = infer(model, data)
    assert files == []
    assert torch.equal(kept, found)


def test_a_temporary_file_is_gone_with_its_table(data, narrow, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = infer(made("sage"), data, memory=0)
    assert list(tmp_path.iterdir()) == []  # it has no name
    rows.add_(1)  # and is the caller's to write to
    torch.testing.assert_close(rows, infer(made("sage"), data) + 1)


def test_a_table_that_does_not_fit_on_the_disk_is_an_error_at_once(data, narrow, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"a table of 0\.00 GiB does not fit in /.* \(No space left on device\): set TMPDIR"):
        infer(made("sage"), data, memory=0)
    infer(made("sage"), data)


def test_weights_of_edges_count_for_few_nodes_as_for_all():
    plain = awkward()
    weighted = hr.Graph(plain.graph.indptr, plain.graph.indices, weight=torch.rand(plain.num_edges))
    data = hr.Dataset(weighted, x=plain.x)
    model = made("gcn")
    rows = infer(model, data)
    assert not torch.allclose(rows, infer(model, plain), atol=1e-2)
    torch.testing.assert_close(infer(model, data, [7, 0, 299]), rows[[7, 0, 299]], atol=1e-5, rtol=1e-5)


def test_layers_may_be_bare_convolutions_and_anything_that_is_called_like_one(data):
    class Mean(nn.Module):
        """Knows nothing of ranges or ids."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 5)

        def forward(self, x, block):
            return hr.kernels.aggregate(self.linear(x[: block.num_src]), block.indptr, block.indices, reduce="mean")

    model = nn.Module()
    model.layers = nn.ModuleList([hr.nn.SAGEConv(12, 8), hr.nn.GCNConv(8, 8), Mean()])
    with torch.no_grad():
        x = data.x
        for layer in model.layers:
            x = layer(x, data.graph)
    for nodes in (None, [0, 7, 299], range(200)):
        wanted = x if nodes is None else x[list(nodes)]
        torch.testing.assert_close(infer(model, data, None if nodes is None else list(nodes)), wanted, atol=1e-5, rtol=1e-5)
    model.layers = model.layers[:2]  # the last one wants degrees
    torch.testing.assert_close(infer(model, data, [0, 7]), infer(model, data)[[0, 7]], atol=1e-5, rtol=1e-5)


def test_the_model_is_evaluated_and_then_left_as_it_was(data):
    model = made("sage")
    model.train()
    model.layers[1].norm.eval()  # somebody keeps one norm fixed
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    first, again = infer(model, data), infer(model, data)
    assert torch.equal(first, again)  # no dropout
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not first.requires_grad
    model.layers[2].forward = None
    with pytest.raises(TypeError):
        infer(model, data)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("nodes", [None, [3], list(range(200)), [3] * 500])
@pytest.mark.parametrize("ranges", ["wide", "narrow"])
def test_progress_goes_up_to_its_end(data, nodes, ranges, request):
    if ranges == "narrow":
        request.getfixturevalue("narrow")
    told = []
    infer(made("sage"), data, nodes, progress=lambda done, total: told.append((done, total)))
    assert len({total for _, total in told}) == 1
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1][0] == told[-1][1]


def test_a_graph_without_edges_or_nodes_has_rows_all_the_same():
    for nodes in (0, 5):
        data = hr.Dataset(hr.Graph.from_edges([], [], nodes), x=torch.randn(nodes, 12))
        model = made("gcn")
        assert infer(model, data).shape == (nodes, 5)
        torch.testing.assert_close(infer(model, data), whole(model, data))


def test_what_cannot_be_inferred_is_named(data):
    class Plain(nn.Module):
        layers = 3

    with pytest.raises(TypeError, match="Plain has no `layers`"):
        infer(Plain(), data)
    with pytest.raises(TypeError, match="Linear has no `layers`"):
        infer(nn.Linear(2, 2), data)
    with pytest.raises(ValueError, match="no features"):
        infer(made("sage"), hr.Dataset(data.graph))
    for nodes in ([0, 300], [0, -1], [0, 300] * 200):
        with pytest.raises(IndexError, match=r"nodes\[1\] is (300|-1): the graph has nodes 0 to 299"):
            infer(made("sage"), data, nodes)
    with pytest.raises(ValueError, match="nodes must hold integers"):
        infer(made("sage"), data, torch.ones(300, dtype=torch.bool))
