import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
import torch
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.train import NodeOptions, Run

runner = CliRunner()
DATASET = "generate:community?nodes=600&edges=9000&classes=3&features=8&seed=2&splits=0.4,0.2,0.4"
QUICK = ["--fanout", "4,4", "--hidden", "8", "--epochs", "2", "--batch-size", "60", "--threads", "1"]


def train(*arguments):
    return runner.invoke(app, ["train", "node", *map(str, arguments)])


def trained(*arguments) -> dict:
    result = train(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments) -> str:
    """The one line that says why."""
    result = train(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("headrace: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "small"
    hr.generate.community(nodes=600, edges=9000, classes=3, features=8, seed=2, splits=(0.4, 0.2, 0.4)).save(path)
    return path


# What it prints and writes


def test_json_is_one_object_with_the_accuracies_and_options(directory, tmp_path):
    more = ["--model", "gcn", "--dropout", "0.25", "--lr", "0.02", "--weight-decay", "5e-4", "--seed", "3", "--repeats", "2"]
    result = train(directory, *QUICK, *more, "--out", tmp_path / "run", "--json")
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 1
    found = json.loads(result.stdout)
    accuracy = found["test_accuracy"]
    assert set(accuracy) == {"mean", "std", "values"}
    assert len(accuracy["values"]) == 2
    assert accuracy["mean"] == pytest.approx(sum(accuracy["values"]) / 2)
    assert accuracy["std"] > 0
    assert found["seconds"] > 0
    assert found["run"] == str(tmp_path / "run")
    options = NodeOptions(**{name: tuple(value) if isinstance(value, list) else value for name, value in found["options"].items()})
    wanted = {"model": "gcn", "dropout": 0.25, "lr": 0.02, "weight_decay": 5e-4, "seed": 3, "repeats": 2, "hidden": 8, "epochs": 2}
    assert options == NodeOptions(**wanted, fanout=(4, 4), layers=2, patience=0, batch_size=60, threads=1, accumulate=1)
    data = hr.open(directory)
    assert tuple(accuracy["values"]) == hr.train.node(data, options=options).test_accuracy.values  # the command is the library


def test_plain_lines_go_to_standard_error_where_there_is_no_terminal(directory, tmp_path):
    result = train(directory, *QUICK, "--out", tmp_path / "[/run]")  # brackets are no markup
    assert result.exit_code == 0, result.output
    first, *_, last = result.stderr.splitlines()
    assert re.match(r"sage with [\d,]+ parameters on 600 nodes, 9,000 edges: 2 epochs of 4 batches, seed 0$", first)
    assert "epoch 2/2 loss" in result.stderr
    assert last.startswith("finished after")
    assert "\x1b" not in result.stderr
    for text in ("test accuracy", "validation accuracy", "test loss", "where the time went", "peak memory", "headrace report"):
        assert text in result.stdout


def test_full_batch_trains_on_the_whole_graph(directory, tmp_path):
    more = ["--full-batch", "--model", "gcn", "--hidden", 8, "--epochs", 20, "--lr", 0.05, "--threads", 1]
    found = trained(directory, *more, "--out", tmp_path / "run")
    assert found["options"]["full_batch"] is True
    assert len(Run(tmp_path / "run").metrics("epoch")) == 20
    assert found["test_accuracy"]["mean"] > 0.7


def test_all_neighbors_can_be_asked_for(directory, tmp_path):
    found = trained(directory, *QUICK, "--fanout", "-1,-1", "--epochs", 1, "--out", tmp_path / "run")
    assert found["options"]["fanout"] == [-1, -1]


def test_runs_without_a_place_are_numbered(directory, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = [trained(directory, *QUICK, "--epochs", 1, "--model", model)["run"] for model in ("sage", "gcn", "sage")]
    assert places == ["runs/small-sage-1", "runs/small-gcn-1", "runs/small-sage-2"]
    assert trained(DATASET, *QUICK, "--epochs", 1)["run"] == "runs/community-sage-1"


def test_the_help_lists_every_option():
    text = runner.invoke(app, ["train", "node", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for name in NodeOptions.__dataclass_fields__:
        assert "--" + name.replace("_", "-") in text
    for name in ("--out", "--resume", "--json", "--config"):
        assert name in text


# Which dataset


def test_a_known_name_is_found_where_headrace_data_says(data_root, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_DATA", str(data_root))
    more = ["--model", "gcn", "--hidden", 8, "--full-batch", "--epochs", 20, "--lr", 0.05, "--threads", 1]
    found = trained("cora", *more, "--out", tmp_path / "run")
    assert found["test_accuracy"]["mean"] > 0.6
    assert Run(tmp_path / "run").header["dataset"]["nodes"] == 2708


def test_a_preset_is_generated(tmp_path):
    found = trained("generate:products?scale=0.001", *QUICK, "--epochs", 1, "--out", tmp_path / "run")
    assert found["dataset"] == "generate:products?scale=0.001"
    assert Run(tmp_path / "run").header["dataset"]["classes"] == 47


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("generate:products?scal=1", "products has no argument 'scal': did you mean 'scale'?"),
        ("generate:product", "there is nothing to generate called 'product'"),
        ("no/such/place", "there is no dataset at no/such/place"),
        ("kora", "'kora' is no directory here"),
    ],
)
def test_a_dataset_that_is_not_there_is_one_line_and_status_2(spec, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    assert message in refused(spec, *QUICK)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_of_another_format_says_so(directory, tmp_path):
    import shutil

    other = tmp_path / "other"
    shutil.copytree(directory, other)
    meta = json.loads((other / "meta.json").read_text())
    key = next(name for name in meta if "format" in name)
    meta[key] = 99
    del meta["crc32"]
    (other / "meta.json").write_text(json.dumps(meta))
    message = refused(other, *QUICK)
    assert "99" in message
    assert "format" in message


def test_data_that_cannot_be_trained_on_is_one_line_and_status_2(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = hr.generate.community(nodes=100, edges=600, classes=3, features=4)
    data.x[5, 2] = float("nan")
    data.save("bad")
    assert "features must be finite: x[5, 2] is nan" in refused("bad", *QUICK)
    hr.Dataset(data.graph, x=data.x, splits=data.splits).save("bare")
    assert "has no labels" in refused("bare", *QUICK)
    assert not (tmp_path / "runs").exists()


# Options that cannot be


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "-1"], "epochs must be at least 0, not -1"),
        (["--batch-size", "0"], "--batch-size must be at least 1, not 0"),
        (["--fanout", "5,x"], "'5,x' is no list of whole numbers"),
        (["--fanout", "5,5", "--layers", "3"], "fanout has 2 hops for 3 layers"),
        (["--model", "mlp"], "model must be one of sage, gcn, gin, gat, gatv2, not 'mlp'"),
        (["--model", "gat", "--hidden", "10", "--heads", "4"], "hidden must be a multiple of heads"),
        (["--resume"], "say which, with --out"),
        (["--device", "gpu"], "device must be cpu or cuda"),
    ],
)
def test_options_that_cannot_be_are_one_line_and_status_2(directory, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(directory, *arguments)


def test_a_loss_that_is_lost_is_one_line_and_status_2(directory, tmp_path):
    result = train(directory, *QUICK, "--lr", "1e25", "--optimizer", "sgd", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert re.search(r"headrace: the (loss|weights) .*epoch 0, batch \d+: .*lower lr", result.stderr.splitlines()[-1])


# Resuming


def test_a_place_that_holds_a_run_is_refused(directory, tmp_path):
    trained(directory, *QUICK, "--out", tmp_path / "run")
    assert "holds a run already: resume it, or choose another place" in refused(directory, *QUICK, "--out", tmp_path / "run")


def test_a_finished_run_that_is_resumed_says_the_same(directory, tmp_path):
    first = trained(directory, *QUICK, "--seed", 4, "--out", tmp_path / "run")
    assert trained(directory, "--out", tmp_path / "run", "--resume") == first  # options are the run's own


def test_resuming_with_another_option_names_it(directory, tmp_path):
    trained(directory, *QUICK, "--out", tmp_path / "run")
    assert "was begun with hidden 8, not 16" in refused(directory, "--hidden", 16, "--out", tmp_path / "run", "--resume")
    message = refused(directory, "--weight-decay", 1, "--out", tmp_path / "run", "--resume")
    assert "was begun with --weight-decay 0.0, not 1.0" in message
    trained(directory, "--staleness", 0, "--out", tmp_path / "run", "--resume")


def test_resuming_what_is_no_run_says_so(directory, tmp_path):
    assert "is no run: it has no options.json" in refused(directory, "--out", tmp_path / "nothing", "--resume")


def test_resuming_a_run_of_another_format_says_so(directory, tmp_path):
    trained(directory, *QUICK, "--out", tmp_path / "run")
    file = tmp_path / "run" / "options.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99, "crc32": None}))
    assert "has format 99; this version of Headrace reads format 2" in refused(directory, "--out", tmp_path / "run", "--resume")


def test_resuming_from_a_damaged_checkpoint_says_so(directory, tmp_path):
    trained(directory, *QUICK, "--out", tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "last.pt").write_bytes(b"nothing")
    assert "last.pt is damaged or no checkpoint" in refused(directory, "--out", tmp_path / "run", "--resume")


def test_a_full_disk_is_one_line_and_status_2(directory, tmp_path, monkeypatch):
    def full(self, state, name="last"):
        (self.path / "checkpoints" / f"{name}.pt.new").symlink_to("/dev/full")
        return save(self, state, name)

    save = Run.save_checkpoint
    monkeypatch.setattr(Run, "save_checkpoint", full)
    result = train(directory, *QUICK, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "headrace: the checkpoint could not be written: No space left on device"
    assert not list(tmp_path.rglob("*.new"))


# A real process: signals and a terminal

LONG = ["--fanout", "4,4", "--hidden", "8", "--epochs", "400", "--batch-size", "60", "--threads", "1", "--log-every", "1"]
BOOT = "import fcntl, os, sys, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "headrace", "train", "node", *map(str, arguments)]


def wait_for_steps(run, process) -> None:
    file = run / "metrics.jsonl"
    for _ in range(6000):
        if (file.exists() and file.stat().st_size > 2000) or process.poll() is not None:
            return
        time.sleep(0.01)
    raise TimeoutError("the run did not begin")


def interrupted(monkeypatch, *, after):
    """What the command says when Ctrl-C comes at once: before the loop begins, which would write a checkpoint."""

    def train_node(data, *, out, **_):
        after(out)
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["headrace.cli.train.node"], "train_node", train_node)  # `node` is the command there
    result = train(DATASET, *QUICK, "--out", "a run")
    assert result.exit_code == 130
    return result.stderr


def test_ctrl_c_before_a_checkpoint_does_not_promise_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    header = {"task": "node", "options": {}, "dataset": {}}
    again = f"headrace train node '{DATASET}' --out 'a run' --resume"
    assert interrupted(monkeypatch, after=lambda out: None) == "interrupted before the run began: nothing was written\n"
    told = interrupted(monkeypatch, after=lambda out: Run.create(out, header))
    assert told == f"interrupted before the first checkpoint of a run. To begin it again:\n  {again}\n"
    told = interrupted(monkeypatch, after=lambda out: Run(out).save_checkpoint({}))
    assert told == f"interrupted; a checkpoint is in a run. To go on:\n  {again}\n"


def test_ctrl_c_writes_a_checkpoint_and_prints_the_command_that_goes_on(tmp_path):
    place = tmp_path / "a run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command(DATASET, *LONG, "--out", place), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for_steps(place, process)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert out == ""
    *_, told, last = said.splitlines()
    assert told.startswith(f"interrupted; a checkpoint is in {place}")
    state = Run(place).load_checkpoint()["state"]
    assert state["step"] == len(Run(place).metrics("step")) > 0
    assert Run(place).result() is None
    # The command that was printed, but for how long it is: a few steps are enough to see that it goes on where it stopped.
    words = shlex.split(last)
    assert words == ["headrace", "train", "node", DATASET, "--out", str(place), "--resume"]
    header = json.loads((place / "options.json").read_text())
    header["options"]["epochs"] = state["epoch"] + 1
    del header["crc32"]  # as the error says, after a change by hand
    (place / "options.json").write_text(json.dumps(header))
    done = runner.invoke(app, words[1:])
    assert done.exit_code == 0, done.output
    assert f"going on at epoch {state['epoch'] + 1}, batch {state['batch'] + 1}" in done.stderr
    assert "test accuracy" in done.stdout
    assert [line["step"] for line in Run(place).metrics("step")] == list(range(1, 4 * (state["epoch"] + 1) + 1))


class Terminal:
    """A terminal of 100 columns that a process believes to be the user's."""

    def __init__(self, arguments: list[str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.before = termios.tcgetattr(slave)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", BOOT, sys.executable, *arguments[1:]],
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        self.slave, self.seen = slave, b""

    def read(self, until=None, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ready, _, _ = select.select([self.master], [], [], 0.05)
            if ready:
                self.seen += os.read(self.master, 1 << 16)
            elif self.process.poll() is not None:
                return
            if until is not None and until in self.seen:
                return
        raise TimeoutError(self.text()[-2000:])

    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.seen.decode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal():
    made = []

    def start(arguments):
        made.append(Terminal(arguments))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_on_a_terminal_the_run_is_shown_live_and_the_terminal_given_back(terminal, tmp_path):
    screen = terminal(command(DATASET, *LONG, "--out", tmp_path / "run"))
    screen.read(until=b"sampled edges/s")
    screen.read(until=b"held back")
    os.write(screen.master, b"\x03")  # Ctrl-C, as a user types it
    screen.read()
    assert screen.process.wait(timeout=30) == 130
    text = screen.text()
    for shown in ("sage ·", "epochs", "batches", "loss", "accuracy", "seeds/s", "memory", "GiB resident", "forward", "╭", "╰"):
        assert shown in text, shown
    assert "interrupted; a checkpoint is in" in text
    assert "--resume" in text
    assert "Traceback" not in text
    assert screen.seen.rindex(b"\x1b[?25h") > screen.seen.rindex(b"\x1b[?25l")  # the cursor is back
    assert termios.tcgetattr(screen.slave) == screen.before


def test_on_a_terminal_a_run_ends_with_a_table(terminal, tmp_path):
    screen = terminal(command(DATASET, *QUICK, "--out", tmp_path / "run"))
    screen.read()
    assert screen.process.wait(timeout=30) == 0
    text = screen.text()
    assert "test accuracy" in text
    assert "headrace report" in text
    assert screen.seen.rindex(b"\x1b[?25h") > screen.seen.rindex(b"\x1b[?25l")
    assert torch.isfinite(torch.tensor(Run(tmp_path / "run").result()["test_accuracy"]["mean"]))
