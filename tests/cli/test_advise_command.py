"""`headrace advise`."""

import json
import shlex
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from headrace._arrays import thread_count
from headrace.cli import advise as command
from headrace.cli import app
from headrace.plan import Machine
from machines import round_machine

SMALL = "generate:community?nodes=300&edges=3000&classes=4&features=16"


@pytest.fixture
def advise(monkeypatch, tmp_path):
    """The command, on a machine that was measured before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    round_machine(threads=thread_count(None)).save(tmp_path / "headrace" / "machine-cpu.json")
    return lambda *arguments: CliRunner().invoke(app, ["advise", *arguments])


def test_it_prints_choices_and_reasons(advise):
    done = advise(SMALL, "--model", "gcn", "--hidden", "8")
    assert done.exit_code == 0, done.output
    for text in ("gcn 16 -> 8 -> 4", "order of nodes", "layer 1: operations", "layer 2: kernel", "dropout of the input"):
        assert text in done.stdout


@pytest.mark.parametrize("order", ["as it is", "rabbit"])
def test_it_ends_with_the_commands_that_train_so(advise, monkeypatch, tmp_path, order):
    plain = command.commands

    def in_order(dataset, options, plan):
        return plain(dataset, options, replace(plan, configuration=replace(plan.configuration, order=order)))

    monkeypatch.setattr(command, "commands", in_order)
    done = advise(SMALL, "--model", "gat", "--hidden", "8", "--heads", "2", "--epochs", "2", "--dtype", "bf16")
    lines = done.stdout.split("to train so\n")[1].splitlines()
    assert len(lines) == (1 if order == "as it is" else 2)
    monkeypatch.chdir(tmp_path)
    for line in lines:
        name, *words = shlex.split(line)
        assert name == "headrace"
        ended = CliRunner().invoke(app, words)
        assert ended.exit_code == 0, ended.output
    [run] = (tmp_path / "runs").iterdir()
    made = json.loads((run / "options.json").read_text())["options"]
    assert (made["model"], made["heads"], made["precision"], made["full_batch"]) == ("gat", 2, "bf16", True)


def test_json_is_one_object(advise):
    done = advise(SMALL, "--model", "gin", "--hidden", "8", "--layers", "3", "--epochs", "7", "--dtype", "fp32", "--json")
    found = json.loads(done.stdout)
    assert found["model"] == {"model": "gin", "dims": [16, 8, 8, 4], "heads": 8, "input_dropout": 0.0}
    assert (found["epochs"], found["dtype"], found["dataset"]) == (7, "float32", SMALL)
    assert [choice["name"] for choice in found["choices"]][:3] == ["order of nodes", "type", "layer 1: operations"]
    for choice in found["choices"]:
        assert choice.keys() == {"name", "chosen", "alternatives", "reason"}
        assert choice["chosen"] in [candidate["name"] for candidate in choice["alternatives"]]
    assert found["step"].keys() == {"bytes", "seconds"}
    assert found["properties"]["edges"] == 3000


def test_verify_shows_what_was_measured(advise):
    done = advise(SMALL, "--model", "sage", "--hidden", "8", "--verify")
    assert done.exit_code == 0, done.output
    assert "predicted and measured" in done.stdout
    assert "the time of the best variant" in " ".join(done.stdout.split())
    found = json.loads(advise(SMALL, "--model", "sage", "--hidden", "8", "--verify", "--json").stdout)
    assert found["verified"]["variants"][0].keys() == {"what", "name", "predicted", "measured", "chosen"}


def test_widths_may_be_given(advise):
    found = json.loads(advise(SMALL, "--dims", "100,32,7", "--model", "sage", "--json").stdout)
    assert found["model"]["dims"] == [100, 32, 7]


def test_a_machine_is_measured_once_and_remembered(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(command, "probe", lambda device: made.append(device) or round_machine(threads=thread_count(None)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "headrace" / "machine-cpu.json"
    file.parent.mkdir()
    file.write_text("{}")  # of another version
    for expected in (1, 1):
        assert CliRunner().invoke(app, ["advise", SMALL]).exit_code == 0
        assert len(made) == expected
        assert Machine.load(file).device == "cpu"
    assert CliRunner().invoke(app, ["advise", SMALL, "--probe"]).exit_code == 0
    assert len(made) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SMALL, "--model", "gnc"], "model must be one of sage, gcn, gin, gat, gatv2, not 'gnc'"),
        ([SMALL, "--dtype", "fp64"], "dtype must be one of auto, fp32, bf16"),
        ([SMALL.replace("features=16", "features=0")], "no features whose width is known: give dims"),
        ([SMALL, "--epochs", "0"], "epochs must be at least 1"),
        ([SMALL, "--input-dropout", "1.5"], "--input-dropout must be from 0 to below 1"),
        (["nowhere"], "'nowhere' is no directory here"),
        ([SMALL, "--device", "mps"], "device must be 'cpu' or 'cuda'"),
    ],
)
def test_bad_input_is_refused_in_a_line(advise, arguments, message):
    done = advise(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
