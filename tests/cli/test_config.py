import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.cli.config import read_config
from headrace.train import NodeOptions

runner = CliRunner()
DATASET = "generate:community?nodes=300&edges=3000&classes=3&features=8"


def write(folder: Path, text: str) -> Path:
    path = folder / "options.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_option_can_stand_in_a_file_by_its_name(tmp_path):
    text = """
    model = "gcn"
    fanout = [7, -1]
    hidden = 32
    lr = 1            # a whole number is a number
    weight-decay = 5e-4
    input_dropout = 0.25
    full_batch = true
    threads = 2
    """
    values = read_config(write(tmp_path, text), NodeOptions)
    assert values == {
        "model": "gcn",
        "fanout": (7, -1),
        "hidden": 32,
        "lr": 1.0,
        "weight_decay": 5e-4,
        "input_dropout": 0.25,
        "full_batch": True,
        "threads": 2,
    }
    assert isinstance(values["lr"], float)
    assert NodeOptions(**values).depth == 2


def test_an_empty_file_changes_nothing(tmp_path):
    assert read_config(write(tmp_path, "# nothing\n"), NodeOptions) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fanot = [5]", r"options\.toml sets 'fanot', which is no option: did you mean 'fanout'\?"),
        ("weight-decai = 1.0", r"sets 'weight-decai', which is no option: did you mean 'weight_decay'\?"),
        (
            "zzzzzz = 1",
            "sets 'zzzzzz', which is no option: it may be one of accumulate, batch_size, budget, capture, checkpoint_seconds",
        ),
        ("[train]\nlr = 1.0", "sets 'train', which is no option"),
        ('epochs = "3"', r"options\.toml: epochs must be int, not '3'"),
        ("epochs = 3.5", "epochs must be int, not 3.5"),
        ("epochs = true", "epochs must be int, not True"),
        ("full_batch = 1", "full_batch must be bool, not 1"),
        ('lr = "fast"', "lr must be float, not 'fast'"),
        ("lr = true", "lr must be float, not True"),
        ('threads = "all"', "threads must be int, not 'all'"),
        ('fanout = "15,10"', "fanout must be a list of whole numbers, not '15,10'"),
        ("fanout = [15, 1.5]", r"fanout must be a list of whole numbers, not \[15, 1.5\]"),
        ("fanout = 15", "fanout must be a list of whole numbers, not 15"),
        ('model = "mlp"', "model must be one of sage, gcn, gin, gat, gatv2, not 'mlp'"),
        ("model = [1]", r"model must be one of .*, not \[1\]"),
        ("lr = 1\nx y", r"options\.toml is no TOML: .*line 2"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_file(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_config(write(tmp_path, text), NodeOptions)


def trained(tmp_path, *arguments) -> dict:
    common = ["train", "node", DATASET, "--out", str(tmp_path / "run"), "--threads", "1", "--json"]
    result = runner.invoke(app, [*common, *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["options"]


def test_the_command_line_wins_over_the_file(tmp_path):
    file = write(tmp_path, 'hidden = 8\nepochs = 1\nfanout = [3, 2]\nmodel = "gcn"\nfull_batch = true\ndropout = 0.25')
    options = trained(tmp_path, "--config", file, "--hidden", 4, "--fanout", "2,2", "--dropout", 0.5)
    assert (options["hidden"], options["fanout"], options["dropout"]) == (4, [2, 2], 0.5)  # 0.5 is the default, and was said
    assert (options["epochs"], options["model"], options["full_batch"]) == (1, "gcn", True)
    assert options["lr"] == NodeOptions().lr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fanot = [5]", "did you mean 'fanout'"),
        ("epochs = -1", "epochs must be at least 0, not -1"),
        ("batch_size = 0", "--batch-size must be at least 1, not 0"),
        ("hidden = [", "is no TOML"),
    ],
)
def test_a_bad_file_is_one_line_and_status_2(tmp_path, text, message):
    result = runner.invoke(app, ["train", "node", DATASET, "--config", str(write(tmp_path, text)), "--out", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("headrace: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_not_there_is_named(tmp_path):
    result = runner.invoke(app, ["train", "node", DATASET, "--config", str(tmp_path / "none.toml")])
    assert result.exit_code == 2
    assert "none.toml" in result.stderr
    assert "Traceback" not in result.output
