"""`headrace plan`."""

import json

import pytest
from typer.testing import CliRunner

from headrace.cli import app

runner = CliRunner()
FREEBASE = ["--nodes", "86054151", "--edges", "304727650", "--optimizer", "adagrad", "--memory", "52GiB", "--device-memory", "0"]


def plan(*arguments):
    return runner.invoke(app, ["plan", *map(str, arguments)])


def test_a_table_with_reasons_and_the_command():
    done = plan(*FREEBASE, "--disk-rate", "400MB")
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.split())
    for words in ("8 of 16 partitions", "comet", "20 loads an epoch", "storage: disk"):
        assert words in shown
    assert "headrace train link DATASET --dim 100 --storage disk --partitions 16 --buffer 8" in done.stdout


def test_json_is_one_object():
    found = json.loads(plan(*FREEBASE, "--json").stdout)
    assert found["options"]["partitions"] == 16
    assert found["bytes"] == pytest.approx(172.1e9 + 12 * 304727650, rel=1e-3)
    assert [choice["name"] for choice in found["choices"]][:2] == ["storage", "partitions and buffer"]


def test_a_dataset_says_its_own_size():
    spec = "generate:community?nodes=200&edges=3000&classes=2&features=2"
    found = json.loads(plan(spec, "--memory", "1GiB", "--device-memory", "0", "--dim", "16", "--json").stdout)
    assert (found["setting"]["nodes"], found["setting"]["edges"], found["storage"]) == (200, 2700, "host")
    assert f"'{spec}'" in found["command"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "10"], "give a dataset, or its nodes and edges"),
        ([*FREEBASE, "--memory", "much"], "not a size"),
        ([*FREEBASE, "--memory", "1GiB"], "give at least"),
        ([*FREEBASE, "--row-type", "fp8"], "--row-type must be one of"),
        ([*FREEBASE, "--order", "any"], "order must be one of"),
        (["nowhere/at/all"], "nowhere/at/all"),
    ],
)
def test_wrong_options_are_refused_in_one_line(arguments, message):
    done = plan(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
