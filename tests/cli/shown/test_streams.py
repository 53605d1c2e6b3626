"""What the command prints, on terminals that lack characters and into pipes and files that take nothing."""

import os
import sys

import pytest

from forked import Child
from headrace.cli import main
from headrace.train import Run

DATASET = "generate:community?nodes=300&edges=3000&classes=3&features=4&seed=2&splits=0.4,0.2,0.4"
QUICK = ["--fanout", "4,4", "--hidden", "8", "--epochs", "2", "--batch-size", "60", "--threads", "1"]


def begun(folder, arguments, *, out=None, err=None, encoding="utf-8", close=()):
    """A child that runs the command in `folder`, with its output to these files; its result is the exit code."""

    def work():
        for handle in close:
            os.close(handle)
        os.chdir(folder)
        for number, name, target in ((1, "stdout", out), (2, "stderr", err)):
            handle = target if isinstance(target, int) else os.open(target or os.devnull, os.O_WRONLY | os.O_CREAT)
            os.dup2(handle, number)
            setattr(sys, name, open(number, "w", closefd=False, encoding=encoding))  # noqa: SIM115
        sys.argv = ["headrace", *map(str, arguments)]
        try:
            main()
        except SystemExit as end:
            return end.code or 0

    return Child(work)


def ran(*arguments, **streams):
    return begun(*arguments, **streams).result()


def assert_complete(place):
    run = Run(place)
    assert run.result() is not None
    assert run.has_checkpoint()
    assert len(run.metrics("epoch")) == 2
    assert not list(place.rglob("*.new"))


def test_progress_that_cannot_be_written_does_not_end_training(tmp_path):
    code = ran(tmp_path, ["train", "node", DATASET, *QUICK, "--out", "run"], out=tmp_path / "said", err="/dev/full")
    assert code == 0
    assert_complete(tmp_path / "run")
    assert "test accuracy" in (tmp_path / "said").read_text()


def test_a_reader_that_leaves_does_not_end_training(tmp_path):
    """As `2>&1 | head -1` does: after the first line nobody reads the pipe."""
    reader, writer = os.pipe()
    child = begun(tmp_path, ["train", "node", DATASET, *QUICK, "--out", "run"], out=writer, err=writer, close=[reader])
    os.close(writer)
    assert b"300 nodes" in os.read(reader, 1 << 16)
    os.close(reader)
    assert child.result() == 1  # the results were not read
    assert_complete(tmp_path / "run")


def test_results_that_cannot_be_written_are_told_in_a_line(tmp_path):
    arguments = ["train", "node", DATASET, *QUICK, "--out", "run"]
    assert ran(tmp_path, arguments, out="/dev/full", err=tmp_path / "said") == 1
    assert_complete(tmp_path / "run")
    *_, last = (tmp_path / "said").read_text().splitlines()
    assert last == "headrace: standard output could not be written: No space left on device"


def test_a_terminal_without_the_characters_gets_others(tmp_path):
    arguments = ["train", "node", DATASET, *QUICK, "--repeats", "2", "--out", "größe"]
    assert ran(tmp_path, arguments, out=tmp_path / "out", err=tmp_path / "err", encoding="ascii") == 0
    assert " % +- " in (tmp_path / "out").read_text("ascii")
    assert ran(tmp_path, arguments, out=tmp_path / "out2", err=tmp_path / "err2", encoding="ascii") == 2
    assert "größe holds a run already" in (tmp_path / "err2").read_text("utf-8")


def test_four_runs_that_begin_at_once_without_out_get_a_folder_each(tmp_path):
    children = [begun(tmp_path, ["train", "node", DATASET, *QUICK]) for _ in range(4)]
    assert [child.result() for child in children] == [0] * 4
    places = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert places == [f"community-sage-{n}" for n in (1, 2, 3, 4)]
    for name in places:
        assert_complete(tmp_path / "runs" / name)


def test_a_refused_run_without_out_leaves_no_folder(tmp_path):
    assert ran(tmp_path, ["train", "node", DATASET, *QUICK, "--model", "sage", "--device", "cuda:99"]) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_closed_stream_is_no_error(tmp_path, closed, monkeypatch):
    monkeypatch.setattr(sys, closed, None)
    monkeypatch.setattr(sys, "argv", ["headrace", "train", "node", "no such data", "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
