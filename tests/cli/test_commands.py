import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app

runner = CliRunner()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "tiny"
    hr.generate.community(nodes=200, edges=2000, classes=3, features=8).save(path)
    return path


def test_info_shows_sizes_and_a_degree_histogram(saved):
    result = runner.invoke(app, ["info", str(saved)])
    assert result.exit_code == 0, result.output
    for text in ("200", "2,000", "8 float32", "max degree", "in-degree", "█"):
        assert text in result.output


def test_info_as_json_counts_every_node(saved):
    result = runner.invoke(app, ["info", str(saved), "--json", "--verify"])
    facts = json.loads(result.output)
    assert (facts["nodes"], facts["edges"], facts["classes"]) == (200, 2000, 3)
    assert sum(b["nodes"] for b in facts["degree_histogram"]) == 200
    degrees = hr.open(saved).graph.degrees()
    for b in facts["degree_histogram"]:
        assert b["nodes"] == int(((degrees >= b["from"]) & (degrees <= b["to"])).sum())


def test_info_of_a_known_name_and_of_a_generated_graph(data_root, monkeypatch):
    monkeypatch.setenv("HEADRACE_DATA", str(data_root))
    facts = json.loads(runner.invoke(app, ["info", "cora", "--json"]).stdout)
    assert (facts["nodes"], facts["classes"], facts["path"]) == (2708, 7, "cora")
    facts = json.loads(runner.invoke(app, ["info", "generate:community,nodes=90,edges=400", "--verify", "--json"]).stdout)
    assert (facts["nodes"], facts["verified"]) == (90, True)


def test_the_version_is_said():
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith(f"headrace {hr.__version__}, torch {torch.__version__}")


def test_info_of_something_else_is_a_clear_error(tmp_path):
    result = runner.invoke(app, ["info", str(tmp_path / "nothing")])
    assert result.exit_code == 2
    assert "there is no dataset at" in result.output


@pytest.mark.parametrize("name", ["sampling", "gather", "cache", "aggregate", "loader"])
def test_bench_prints_rows_with_ours_peers_and_limit(name):
    result = runner.invoke(app, ["bench", name, "--scale", "0.002", "--batches", "2", "--repeats", "1", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert rows
    for row in rows:
        assert set(row) == {"bench", "case", "metric", "unit", "ours", "peers", "limit"}
        assert row["bench"] == name
        assert row["ours"] > 0
        assert row["limit"] > 0


def test_bench_out_of_core_counts_loads_and_bytes_by_order():
    result = runner.invoke(app, ["bench", "out-of-core", "--scale", "0.002", "--threads", "1", "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    loads = {row["case"].split(",")[0]: row for row in rows if row["metric"] == "loads of an epoch"}
    assert {name: row["peers"]["order"] for name, row in loads.items()} == {
        "beta": 42,
        "comet": 54,
        "hilbert_symmetric": 56,
        "best": 38,
    }
    assert all(0 < row["ours"] <= row["peers"]["order"] and row["limit"] == 38 for row in loads.values())
    moved = [row for row in rows if row["metric"] == "read and written"]
    assert all(row["ours"] <= row["peers"]["2 L S / p"] for row in moved)
    assert all(row["ours"] > 0 and row["limit"] > 0 for row in rows if row["metric"] == "epoch")


def test_bench_link_times_an_epoch_and_ranks_what_was_learned(tmp_path):
    triples = torch.stack([torch.arange(300) % 60, torch.arange(300) % 3, (torch.arange(300) + 7) % 60], 1).int()
    extra = {"train": triples[:260], "valid": triples[260:280], "test": triples[280:]}
    graph = hr.Graph.from_edges(triples[:, 0], triples[:, 2], 60)
    hr.Dataset(graph, extra=extra, info={"num_relations": 3, "name": "ring"}).save(tmp_path / "ring")
    peer = tmp_path / "python"  # an interpreter without the peers
    peer.write_text("#!/bin/sh\nexit 3\n")
    peer.chmod(0o755)
    options = ["--data", str(tmp_path / "ring"), "--repeats", "1", "--threads", "1", "--peers-python", str(peer), "--json"]
    result = runner.invoke(app, ["bench", "link", *options])
    assert result.exit_code == 0, result.output
    epoch, ranking, quality = json.loads(result.stdout)
    assert (ranking["metric"], ranking["unit"]) == ("full ranking", "G scores/s")
    assert min(ranking["ours"], ranking["peers"]["plain torch"], ranking["limit"]) > 0
    assert (epoch["metric"], epoch["unit"], epoch["peers"]) == ("epoch", "s", {})
    assert epoch["ours"] > 0
    assert epoch["limit"] > 0
    assert 0 < quality["ours"] <= 1
    peer.write_text("#!/bin/sh\necho 'the disk is full' >&2\nexit 1\n")
    failed = runner.invoke(app, ["bench", "link", *options])
    assert failed.exit_code == 2
    assert "the disk is full" in failed.output


def test_bench_attend_times_a_step_and_measures_its_memory():
    options = ["--scale", "0.001", "--repeats", "1", "--against", "torch", "--json"]
    result = runner.invoke(app, ["bench", "attend", *options])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["unit"] for row in rows] == ["s", "MB", "s"] * 2
    assert all(row["ours"] > 0 and row["limit"] > 0 for row in rows)


def test_bench_prints_a_table_for_people():
    result = runner.invoke(app, ["bench", "gather", "--scale", "0.002", "--batches", "1", "--repeats", "1", "--threads", "1"])
    assert result.exit_code == 0, result.output
    assert "limit of the machine" in result.output
    assert "torch x[ids]" in result.output


def test_an_unknown_benchmark_is_named():
    result = runner.invoke(app, ["bench", "speed"])
    assert result.exit_code == 2
    assert "speed" in result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing where there is no GPU")
@pytest.mark.parametrize("name", ["gpu-sampling", "gpu-gather", "gpu-epoch", "gpu-tiers", "gpu-attend", "gpu-link"])
def test_a_benchmark_of_the_gpu_says_that_there_is_none(name):
    result = runner.invoke(app, ["bench", name, "--scale", "0.002"])
    assert result.exit_code == 2
    assert "headrace: this benchmark measures a GPU, and torch sees none here\n" in result.output


@pytest.mark.slow
def test_bench_train_times_a_step_and_its_parts_beside_the_products_alone():
    result = runner.invoke(app, ["bench", "train", "--scale", "0.002", "--batches", "2", "--repeats", "1", "--json"])
    assert result.exit_code == 0, result.output
    rows = {row["case"].rpartition(", ")[2]: row for row in json.loads(result.stdout)}
    for kind in ("fp32", "bf16"):
        assert rows[kind]["limit"] > 0
        assert rows[kind]["ours"] > 0
    parts = sum(rows[f"part: {part}"]["ours"] for part in ("wait", "forward", "backward", "step"))
    assert parts <= 1.2 * rows["fp32"]["ours"]
    assert 0 < rows["after 4 steps"]["ours"] <= 1


def test_demo_trains_a_model_and_writes_a_report(tmp_path):
    run = tmp_path / "run"
    result = runner.invoke(app, ["demo", "--nodes", "3000", "--epochs", "2", "--out", str(run)])
    assert result.exit_code == 0, result.output
    for text in ("test accuracy", "best possible accuracy", "epoch", "where the time went"):
        assert text in result.output
    assert (run / "report.html").is_file()


def test_the_command_is_installed():
    done = subprocess.run([sys.executable, "-m", "headrace", "--help"], capture_output=True, text=True, check=True)
    for command in ("import", "info", "bench", "train", "predict", "report", "demo"):
        assert command in done.stdout
