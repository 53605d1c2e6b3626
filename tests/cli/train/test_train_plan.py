"""`headrace train link --plan`."""

import json

from typer.testing import CliRunner

from headrace.cli import app
from headrace.train import Run

runner = CliRunner()
DATASET = "generate:community?nodes=3000&edges=5000&classes=3&features=2&seed=2"
QUICK = ["--dim", "64", "--epochs", "2", "--threads", "1", "--test-edges", "20", "--val-edges", "20", "--raw"]


def train(*arguments):
    return runner.invoke(app, ["train", "link", DATASET, *QUICK, *map(str, arguments)])


def test_options_come_from_the_plan_which_is_said_first_and_kept(tmp_path):
    result = train("--plan", "--memory", "1GiB", "--out", tmp_path / "run", "--json")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stderr.split())
    assert "predicted for an epoch" in said
    assert "storage: host" in said
    assert said.index("storage: host") < said.index("epoch 2/2")
    found = json.loads(result.stdout)
    header = Run(tmp_path / "run").header
    assert (found["options"]["storage"], found["options"]["batch_size"]) == ("host", header["plan"]["batch_size"])
    assert set(found["plan"]["predicted"]) == set(found["plan"]["measured"]) == {"read", "written", "seconds"}


def test_explicit_options_win_and_predictions_stand_beside_measurements(tmp_path):
    asked = ["--storage", "disk", "--partitions", "8", "--batch-size", "500"]
    result = train("--plan", *asked, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    options = Run(tmp_path / "run").header["options"]
    assert (options["storage"], options["partitions"], options["batch_size"]) == ("disk", 8, 500)
    shown = " ".join(result.stdout.replace("│", " ").split())
    assert "epoch against its plan" in shown
    assert "predicted)" in shown


def test_a_config_file_counts_as_given(tmp_path):
    (tmp_path / "recipe.toml").write_text('storage = "disk"\nstaleness = 2\n')
    result = train("--plan", "--config", tmp_path / "recipe.toml", "--out", tmp_path / "run", "--json")
    assert result.exit_code == 0, result.output
    options = json.loads(result.stdout)["options"]
    assert (options["storage"], options["staleness"], options["dim"]) == ("disk", 2, 64)
    assert options["partitions"] > options["buffer"] > 1


def test_an_impossible_plan_is_refused_in_one_line(tmp_path):
    for arguments, message in (
        (["--memory", "2MiB"], "is too small for 3,000 rows of 260 bytes and 4,494 edges, even on disk: give at least"),
        (["--memory", "200KiB"], "is too small"),
        (["--memory", "600KiB", "--storage", "host"], "storage host needs"),
        (["--partitions", "9", "--buffer", "4", "--order", "comet"], "order comet does not go"),
        (["--resume"], "leave out --plan"),
        (["--decoder", "transf"], "decoder must be one of"),
    ):
        result = train("--plan", *arguments, "--out", tmp_path / "run")
        assert result.exit_code == 2, result.output
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
