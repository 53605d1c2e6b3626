"""`headrace bench temporal` on a short stream: both rows, the peer beside them, and results that are checked first."""

import dataclasses

import pytest
import torch
from typer.testing import CliRunner

import headrace as hr
from headrace.bench import BENCHES
from headrace.bench.events import temporal
from headrace.bench.events.products import Products
from headrace.cli import app
from headrace.nn import TGN


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stream") / "events"
    hr.generate.events(nodes=60, events=900, new=0.02, seed=5).save(folder)
    return str(folder)


def test_a_rate_and_its_precision_stand_beside_the_peer_and_the_limit(stream):
    pytest.importorskip("torch_geometric")
    chosen = temporal.TemporalSetting(data=stream, batch_sizes=(50,), epochs=1, hidden=8, threads=1)
    rate, precision = BENCHES["temporal"].run(chosen)
    assert (rate.bench, rate.unit, precision.unit) == ("temporal", "events/s", "share")
    assert set(rate.peers) == set(precision.peers) == {"PyG TGN"}
    assert 0 < rate.ours < rate.limit
    assert 0 < precision.ours <= 1
    assert 0 < precision.peers["PyG TGN"] <= 1
    assert "630 training events, batches of 50" in rate.case


def test_nothing_is_timed_where_an_embedding_is_wrong(stream, monkeypatch):
    right = TGN.embed
    monkeypatch.setattr(TGN, "embed", lambda *arguments, **more: right(*arguments, **more) + 1e-3)
    with pytest.raises(RuntimeError, match=r"differs by 0.001.* nothing is timed"):
        temporal.run(temporal.TemporalSetting(data=stream, batch_sizes=(50,), epochs=1, hidden=8, threads=1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_named(stream):
    done = CliRunner().invoke(app, ["bench", "gpu-temporal", "--data", stream, "--json"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "this benchmark measures a GPU, and torch sees none here" in done.output


def test_lanes_and_a_stream_on_disk_have_rows_of_their_own(stream, tmp_path):
    sizes = {"generated": 2000, "generated_nodes": 50, "generated_batch": 100, "folder": str(tmp_path)}
    chosen = temporal.TemporalSetting(data=stream, epochs=1, hidden=8, threads=1, **sizes)
    events, name = temporal._stream(chosen)
    options = dataclasses.replace(temporal._options(chosen, 50, "2x1x2"), lanes="together")
    rate, precision = temporal._rows(chosen, events, options, name)
    assert "2x1x2 lanes, batches of 50" in rate.case
    assert 0 < rate.ours < rate.limit
    assert rate.peers == precision.peers == {}
    row = temporal._long_row(chosen)
    assert "1400 training events of 50 nodes, mapped from disk" in row.case
    assert row.ours > 0
    made = list(tmp_path.iterdir())
    assert [path.name for path in made] == ["events-2000-50"]
    assert temporal._long_row(chosen).ours > 0  # of the one that is there


def test_products_are_those_that_ran():
    a, b = torch.randn(4, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    with Products() as products:
        (a @ b).sum().backward()
    assert products.operations == 3 * 2 * 4 * 3 * 2
    assert [factor.shape for factor in products.asked[0][1]] == [(4, 3), (3, 2)]
    products.alone()()
