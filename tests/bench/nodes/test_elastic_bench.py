"""`headrace bench elastic`: what its rows hold, and that nothing is timed while losses differ."""

import json

import pytest
import torch
from typer.testing import CliRunner

from headrace.bench.nodes import elastic
from headrace.cli import app

SMALL = ["bench", "elastic", "--scale", "0.001", "--repeats", "1", "--intervals", "3", "--threads", "1", "--json"]


def test_a_row_is_pipe_beside_sync_one_process_and_the_limit():
    done = CliRunner().invoke(app, SMALL)
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [row["bench"] for row in rows] == ["elastic"] * len(elastic.CASES)
    for row, case in zip(rows, elastic.CASES, strict=True):
        assert row["case"].startswith(f"{case}, 3 intervals, 1 thread, 2449 nodes")
        assert row["peers"].keys() == {"sync", "full_batch in one process"}
        assert row["unit"] == "s"
        assert all(figure > 0 for figure in (row["ours"], row["limit"], *row["peers"].values()))


def test_nothing_is_timed_while_losses_differ(monkeypatch):
    take = elastic.ParameterStore.take
    monkeypatch.setattr(elastic.ParameterStore, "take", lambda store: {n: 0 * g for n, g in take(store).items()})
    setting = elastic.ElasticSetting(scale=0.001, repeats=1, threads=1)
    with pytest.raises(RuntimeError, match="nothing is timed"):
        elastic.on_cpu(setting)


def test_the_benchmark_leaves_no_worker_behind():
    before = torch.get_num_threads()
    data = elastic.ElasticSetting(scale=0.001).dataset()
    training = elastic.ElasticTraining(elastic.CASES[0], data, flow="pipe", intervals=2, workers=2)
    assert training.step() > 0
    training.close()
    assert torch.get_num_threads() == before
    with pytest.raises(RuntimeError, match=r"shut down|closed"):
        training.step()
