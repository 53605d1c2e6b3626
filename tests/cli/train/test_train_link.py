"""`headrace train link`."""

import json
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.cli.shown.live import LiveView
from headrace.train import LinkOptions, Run
from headrace.train.report import figures
from headrace.train.report.read import read_run

runner = CliRunner()
DATASET = "generate:community?nodes=120&edges=1500&classes=3&features=2&seed=2"
QUICK = ["--dim", "8", "--epochs", "2", "--batch-size", "100", "--negatives", "20", "--chunks", "4", "--threads", "1"]


def train(*arguments):
    return runner.invoke(app, ["train", "link", *map(str, arguments)])


def test_json_is_one_object_that_names_its_measures(tmp_path):
    result = train(
        DATASET, *QUICK, "--ranking", "both", "--candidates", "30", "--validate-every", "1", "--out", tmp_path / "run", "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["test"]["ranking"] == "full"
    assert {"mrr", "hits@1", "hits@3", "hits@10", "mean_rank", "full_filtered", "full_raw", "sampled_filtered"} <= set(
        found["test"]
    )
    assert found["options"]["decoder"] == "dot"
    assert found["seconds"] > 0
    assert found["bytes"] == 120 * (8 + 1) * 4
    assert Run(tmp_path / "run").result()["test"] == found["test"]
    assert "val mrr" in result.stderr
    assert "test mrr" in result.stderr


def test_tables_name_full_and_sampled(tmp_path):
    result = train(DATASET, *QUICK, "--ranking", "both", "--candidates", "30", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    for words in ("full filtered", "full raw", "sampled filtered", "hits@10", "negatives: any nodes"):
        assert words in " ".join(result.stdout.split()), result.stdout


def test_repeats_have_a_mean_and_a_spread_in_the_table_in_json_and_in_the_report(tmp_path):
    more = ["--repeats", "2", "--validate-every", "1"]
    result = train(DATASET, *QUICK, *more, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.replace("│", " ").split())
    assert "means of 2 runs" in shown
    repeats = [Run(tmp_path / "run" / f"repeat-{number}").metrics("end")[0] for number in (0, 1)]
    for name, words in (("test_mrr", "test mrr"), ("val_mrr", "validation mrr")):
        spread = Run(tmp_path / "run").result()["repeats"][name]
        assert spread["values"] == [end[name] for end in repeats]
        assert spread["std"] > 0
        assert f"{words} {spread['mean']:.4f} ± {spread['std']:.4f} over 2 runs" in shown
    assert "median of 4" in shown
    [rank] = [line for line in result.stdout.splitlines() if "full filtered" in line]
    assert f"{sum(end['test']['full_filtered']['hits@10'] for end in repeats) / 2:.4f}" in rank
    again = train(DATASET, "--out", tmp_path / "run", "--resume", "--json")
    assert json.loads(again.stdout)["repeats"] == Run(tmp_path / "run").result()["repeats"]
    summary = figures.summary(read_run(tmp_path / "run"))
    assert [(m["name"], m["test"]["count"]) for m in summary["measures"]] == [("mrr", 2), ("auc", 2), ("ap", 2)]


def test_a_run_says_what_it_measures_and_where_its_time_went(tmp_path):
    result = train(DATASET, *QUICK, "--out", tmp_path / "run")
    measures = [{"name": name, "better": "higher", "format": ".4f"} for name in ("mrr", "auc", "ap")]
    assert Run(tmp_path / "run").header["measures"] == measures
    shown = " ".join(result.stdout.replace("│", " ").split())
    assert re.search(r"where the time went .*validate \d+ %", shown)
    parts = figures.time_parts(read_run(tmp_path / "run"))
    assert {"wait", "load", "compute", "validate", "other"} <= set(parts)


def test_disk_and_its_order(tmp_path):
    disk = ["--storage", "disk", "--partitions", "4", "--buffer", "2", "--order", "beta", "--staleness", "3"]
    result = train(DATASET, *QUICK, *disk, "--out", tmp_path / "run", "--json")
    assert result.exit_code == 0, result.output
    assert "2 of 4 partitions" in Run(tmp_path / "run").header["negatives_from"]
    again = train(DATASET, "--out", tmp_path / "run", "--resume", "--json")
    assert json.loads(again.stdout)["test"] == json.loads(result.stdout)["test"]


def test_a_config_file_gives_the_same_names(tmp_path):
    (tmp_path / "recipe.toml").write_text('decoder = "distmult"\ndim = 6\nepochs = 1\nreciprocal = true\n')
    result = train(DATASET, "--config", tmp_path / "recipe.toml", "--epochs", "2", "--out", tmp_path / "run", "--json")
    options = json.loads(result.stdout)["options"]
    assert (options["decoder"], options["dim"], options["epochs"], options["reciprocal"]) == ("distmult", 6, 2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--decoder", "transf"], "decoder must be one of"),
        (["--storage", "disk"], "needs partitions"),
        (["--decoder", "complex", "--dim", "7"], "even"),
        (["--regularizer", "n3"], "give both"),
    ],
)
def test_wrong_options_are_refused_in_one_line(tmp_path, arguments, message):
    result = train(DATASET, *arguments, "--out", tmp_path / "run")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_live_view_shows_a_run(tmp_path):
    console = Console(file=open(tmp_path / "view", "w"), force_terminal=True, width=120)  # noqa: SIM115
    view = LiveView(console)
    data = hr.generate.community(nodes=100, edges=900, classes=2, features=2)
    hr.train.link(data, LinkOptions(dim=4, epochs=2, batch_size=50, negatives=5, validate_every=1, threads=1), watcher=view)
    with console.capture() as captured:
        console.print(view._view())
    view.close()
    console.file.close()
    shown = captured.get()
    assert "mrr" in shown
    assert "(best 0." in shown
    assert "seeds/s" in shown
    shares = dict(re.findall(r"(wait|load|compute|validate) (\d+) %", re.sub(r"\x1b\[[0-9;]*m", "", shown)))
    assert {"wait", "compute"} <= set(shares)
    assert 95 <= sum(int(share) for share in shares.values()) <= 101, shares


DISK = ["--storage", "disk", "--partitions", "4", "--buffer", "2", "--order", "beta"]


def test_memory_bounds_a_run_on_disk_which_tells_what_the_disk_did(tmp_path):
    result = train(DATASET, *QUICK, *DISK, "--memory", "64MiB", "--out", tmp_path / "run", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["options"]["memory"] == "64MiB"
    assert found["disk"]["loads"] == 2 + 2 * 5
    assert found["disk"]["bytes_read"] == (2 + 2 * 5) * 4096
    assert found["peak_memory"] > 0
    epochs = Run(tmp_path / "run").metrics("epoch")
    assert [line["disk"]["loads"] for line in epochs] == [7, 5]
    shown = train(DATASET, *QUICK, *DISK, "--out", tmp_path / "shown")
    assert "in 12 loads, 6.0 an epoch; busy" in " ".join(shown.stdout.replace("│", " ").split()), shown.stdout


def test_memory_that_is_too_little_is_refused(tmp_path):
    result = train(DATASET, *QUICK, *DISK, "--memory", "1MiB", "--out", tmp_path / "run")
    assert result.exit_code != 0
    assert "are needed" in " ".join(result.output.replace("│", " ").split()), result.output
    assert not (tmp_path / "run").exists()
