import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.pipeline import Trace
from headrace.train import Run
from headrace.train.run import new_folder, next_name

HEADER = {"task": "node", "dataset": {"nodes": 3}, "options": {"lr": 0.1, "fanout": [5, 5]}}


def test_a_new_run_holds_its_header(tmp_path):
    run = Run.create(tmp_path / "deep" / "run", HEADER)
    assert HEADER.items() <= run.header.items()
    assert (run.header["format"], run.header["name"]) == (2, "run")
    assert Run(tmp_path / "deep" / "run").header == run.header
    assert run.result() is None
    assert run.metrics() == []
    assert not run.has_checkpoint()


def test_a_run_is_never_written_over(tmp_path):
    Run.create(tmp_path / "run", HEADER)
    before = (tmp_path / "run" / "options.json").read_bytes()
    with pytest.raises(FileExistsError, match="holds a run already: resume it, or choose another place"):
        Run.create(tmp_path / "run", HEADER)
    assert (tmp_path / "run" / "options.json").read_bytes() == before
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").touch()
    with pytest.raises(FileExistsError, match="holds other files and is no run"):
        Run.create(tmp_path / "letters", HEADER)
    with pytest.raises(FileExistsError, match="is a file: a run is a directory"):
        Run.create(tmp_path / "letters" / "a.txt", HEADER)


def test_an_empty_directory_and_one_of_a_run_that_was_killed_as_it_began_are_free(tmp_path):
    (tmp_path / "empty").mkdir()
    Run.create(tmp_path / "empty", HEADER)
    (tmp_path / "killed" / "checkpoints").mkdir(parents=True)
    (tmp_path / "killed" / "options.json.new").write_text("{")
    assert Run.create(tmp_path / "killed", HEADER).header["task"] == "node"
    assert not (tmp_path / "killed" / "options.json.new").exists()
    (tmp_path / "mine" / "checkpoints").mkdir(parents=True)
    (tmp_path / "mine" / "checkpoints" / "last.pt").touch()
    with pytest.raises(FileExistsError, match="holds other files"):
        Run.create(tmp_path / "mine", HEADER)


def test_something_else_is_no_run(tmp_path):
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(FileNotFoundError, match=r"is no run: it has no options\.json"):
            _ = Run(path).header


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"task": "node"}', "is damaged: 'format'"),
        ('{"format": 1}', "has format 1; this version of Headrace reads format 2"),
        (b"\xff\xfe", "is damaged"),
    ],
)
def test_a_header_that_cannot_be_read_is_a_clear_error(tmp_path, content, message):
    (tmp_path / "options.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        _ = Run(tmp_path).header


def test_lines_of_the_log_come_back_in_order_and_by_kind(tmp_path):
    run = Run.create(tmp_path / "run", HEADER)
    for step in range(3):
        run.log("step", step=step, loss=0.5)
    run.log("epoch", epoch=0, time={"wait": 0.5})
    assert [line["step"] for line in run.metrics("step")] == [0, 1, 2]
    assert run.metrics()[-1] == {"kind": "epoch", "epoch": 0, "time": {"wait": 0.5}}
    assert all(json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines())
    run.close()
    run.log("end", seconds=1.0)
    assert len(Run(run.path).metrics()) == 5
    run.close()


def test_a_last_line_that_is_cut_anywhere_is_not_read(tmp_path):
    run = Run.create(tmp_path / "run", HEADER)
    run.log("epoch", epoch=0, time={"wait": 0.5}, memory={"peak": 1})
    run.log("epoch", epoch=1, time={"wait": 0.5}, memory={"peak": 1})
    run.close()
    file = run.path / "metrics.jsonl"
    whole = file.read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        assert [line["epoch"] for line in Run(run.path).metrics()] == ([0] if size >= first else [])


def test_a_checkpoint_remembers_how_long_the_log_was(tmp_path):
    run = Run.create(tmp_path / "run", HEADER)
    run.save_checkpoint({"state": 0}, "none")
    run.log("step", step=1)
    run.save_checkpoint({"state": 1})
    run.log("step", step=2)
    run.close()
    again = Run(run.path)
    saved = again.load_checkpoint()
    assert saved["state"] == 1
    again.cut_log(saved["log_position"])
    again.log("step", step=3)
    assert [line["step"] for line in again.metrics()] == [1, 3]
    again.save_checkpoint({"state": 2})
    assert again.load_checkpoint()["log_position"] == (run.path / "metrics.jsonl").stat().st_size
    again.cut_log(again.load_checkpoint("none")["log_position"])
    assert again.metrics() == []
    again.cut_log(1000)  # nothing to cut
    assert (run.path / "metrics.jsonl").stat().st_size == 0


def test_the_lines_that_a_checkpoint_counts_on_reach_the_disk_before_it(tmp_path, monkeypatch):
    run = Run.create(tmp_path / "run", HEADER)
    run.log("step", step=1)
    done = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: done.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))) or fsync(handle)
    )
    run.save_checkpoint({})
    run.close()
    assert [os.path.basename(file) for file in done] == ["metrics.jsonl", "last.pt.new", "checkpoints"]


def test_a_timeline_that_cannot_be_written_leaves_the_one_before(tmp_path):
    run, trace = Run.create(tmp_path / "run", HEADER), Trace()
    trace.add("forward", 0, 0.0, 1.0)
    run.save_trace(trace)
    before = (run.path / "trace.json").read_bytes()
    (run.path / "trace.json.new").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        run.save_trace(trace)
    assert (run.path / "trace.json").read_bytes() == before
    assert not os.path.lexists(run.path / "trace.json.new")


def test_the_next_name_is_the_first_that_is_free(tmp_path):
    assert next_name(tmp_path, "cora-gcn") == tmp_path / "cora-gcn-1"
    for number in (1, 2, 4):
        (tmp_path / f"cora-gcn-{number}").mkdir()
    assert next_name(tmp_path, "cora-gcn") == tmp_path / "cora-gcn-3"
    assert next_name(tmp_path / "runs", "x") == tmp_path / "runs" / "x-1"


def test_runs_that_begin_at_once_get_a_folder_each(tmp_path):
    barrier = threading.Barrier(8)

    def begin(_):
        barrier.wait()
        with new_folder(tmp_path / "runs", "x") as path:
            Run.create(path, HEADER)
            return path

    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(begin, range(8)))
    assert len(set(paths)) == 8
    assert all(Run(path).header["name"] == path.name for path in paths)


def test_a_new_folder_that_stays_empty_goes(tmp_path):
    with pytest.raises(KeyError), new_folder(tmp_path / "runs", "x"):
        raise KeyError
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs").mkdir()
    with new_folder(tmp_path / "runs", "x") as path:
        assert path.is_dir()
    assert [file.name for file in tmp_path.iterdir()] == ["runs"]


def test_a_run_is_written_by_one_process_at_a_time(tmp_path):
    run = Run.create(tmp_path / "run", HEADER)
    with pytest.raises(BlockingIOError, match=rf"run is in use by process {os.getpid()} on .* since .*: wait until"):
        Run(tmp_path / "run").lock()
    run.unlock()
    Run(tmp_path / "run").lock()
