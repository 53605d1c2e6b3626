import errno
import os
import pickle

import pytest
import torch

import headrace as hr
from headrace._files import write_whole
from headrace.train import CheckpointError, Run, Watcher, node
from headrace.train.checkpoint import load_checkpoint, save_checkpoint
from training_cases import StopAt, StoppedError, assert_same_run, small

STATE = {"model": {"w": torch.arange(6.0).view(2, 3)}, "state": {"epoch": 3, "best": None, "sums": {"nodes": [1, 2]}}, "end": None}


@pytest.fixture(scope="module")
def data() -> hr.Dataset:
    return hr.generate.community(nodes=600, edges=6000, classes=3, features=8, seed=2, splits=(0.3, 0.2, 0.5))


def options(**changes):
    return small(**{"epochs": 2, "checkpoint_seconds": 0.0, "log_every": 1, **changes})


def no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    save_checkpoint(tmp_path / "last.pt", STATE)
    found = load_checkpoint(tmp_path / "last.pt")
    assert torch.equal(found["model"].pop("w"), STATE["model"]["w"])
    assert found == {**STATE, "model": {}}
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_file_that_was_there(tmp_path, monkeypatch, where):
    file = tmp_path / "last.pt"
    save_checkpoint(file, STATE)
    before = file.read_bytes()
    if where == "write":
        (tmp_path / "last.pt.new").symlink_to("/dev/full")  # a real full disk
    else:
        monkeypatch.setattr(os, where, no_space)
    with pytest.raises(
        CheckpointError, match=r"could not be written: No space left on device; the one before is whole \(.*last\.pt\)"
    ):
        save_checkpoint(file, {**STATE, "end": {"test": 1.0}})
    assert file.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["last.pt"]


def test_of_a_first_checkpoint_that_fails_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(CheckpointError, match=r"could not be written: No space left on device$"):
        save_checkpoint(tmp_path / "last.pt", STATE)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: done.append(os.readlink(f"/proc/self/fd/{handle}")) or fsync(handle))
    monkeypatch.setattr(os, "replace", lambda a, b: done.append("renamed") or replace(a, b))
    write_whole(tmp_path / "file", b"x")
    assert done == [str(tmp_path / "file.new"), "renamed", str(tmp_path)]


def test_an_interrupt_while_writing_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    write_whole(tmp_path / "file", b"before")

    def interrupted(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("damage", ["empty", "cut short", "other bytes", "no checkpoint", "no format", "a byte changed"])
def test_a_damaged_checkpoint_is_an_error_that_names_it(tmp_path, damage):
    file = tmp_path / "last.pt"
    save_checkpoint(file, {"model": {"w": torch.arange(4000.0)}})
    whole = file.read_bytes()
    if damage == "no format":
        torch.save({"model": {}}, file)
    elif damage == "no checkpoint":
        torch.save([1, 2], file)
    else:
        changed = bytearray(whole)
        changed[len(whole) // 2] ^= 1
        parts = {"empty": b"", "cut short": whole[:-100], "other bytes": os.urandom(500), "a byte changed": bytes(changed)}
        file.write_bytes(parts[damage])
    with pytest.raises(CheckpointError, match=r"last\.pt is damaged or no checkpoint"):
        load_checkpoint(file)


def test_a_checkpoint_of_another_format_says_so(tmp_path):
    torch.save({"format": 7, "model": {}}, tmp_path / "last.pt")
    with pytest.raises(CheckpointError, match="has format 7; this version of Headrace reads format 2"):
        load_checkpoint(tmp_path / "last.pt")


def test_a_checkpoint_that_is_not_there_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        load_checkpoint(tmp_path / "last.pt")


def test_a_checkpoint_from_elsewhere_cannot_run_code(tmp_path):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    torch.save({"format": 2, "model": Harm()}, tmp_path / "last.pt")
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path / "last.pt")
    (tmp_path / "last.pt").write_bytes(pickle.dumps({"format": 2, "model": Harm()}))
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path / "last.pt")
    assert not (tmp_path / "harm").exists()


class FillDisk(Watcher):
    """After a number of steps, what is written next finds a full disk."""

    def __init__(self, place, steps, *files):
        self.place, self.steps, self.files, self.notes = place, steps, files, []

    def step(self, event, clock):
        if event.step == self.steps:
            for file in self.files:
                (self.place / file).unlink(missing_ok=True)
                (self.place / file).symlink_to("/dev/full")

    def note(self, text):
        self.notes.append(text)


def test_a_disk_that_is_full_stops_the_run_with_a_whole_checkpoint(data, tmp_path):
    node(data, options=options(), out=tmp_path / "whole")
    place = tmp_path / "run"
    full = FillDisk(place, 4, "checkpoints/last.pt.new", "trace.json.new")
    with pytest.raises(CheckpointError, match="could not be written: No space left on device; the one before is whole"):
        node(data, options=options(), out=place, watcher=full)
    assert full.notes == ["the timeline could not be written: No space left on device"]
    assert not list(place.rglob("*.new"))
    assert Run(place).load_checkpoint()["state"]["step"] == 3
    node(data, options=options(), out=place, resume=True)  # somebody made room
    assert_same_run(place, tmp_path / "whole")


def test_a_log_that_cannot_be_written_stops_the_run_and_says_why(data, tmp_path):
    place = tmp_path / "run"

    class Full(Watcher):
        def begin(self, header, **where):
            (place / "metrics.jsonl").symlink_to("/dev/full")

    with pytest.raises(OSError, match=r"the log could not be written: No space left on device: .*metrics\.jsonl"):
        node(data, options=options(), out=place, watcher=Full())


def test_ctrl_c_on_a_full_disk_says_that_there_is_no_checkpoint(data, tmp_path, monkeypatch):
    import signal

    with monkeypatch.context() as patch:

        class Full(StopAt):
            def step(self, event, clock):
                super().step(event, clock)
                patch.setattr(os, "fsync", no_space)

        with pytest.raises(CheckpointError, match="No space left on device"):
            node(data, options=options(checkpoint_seconds=1e9), out=tmp_path / "run", watcher=Full("step", 1, signal.SIGINT))
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_a_loss_that_is_lost_names_its_place_and_keeps_the_last_checkpoint(data, tmp_path):
    place = tmp_path / "run"
    with pytest.raises(StoppedError):
        node(data, options=options(lr=1e25, optimizer="sgd"), out=place, watcher=StopAt("begin", 1))
    with pytest.raises(FloatingPointError, match=r"at epoch 0, batch [12]: .*lower lr \(1e\+25\)"):
        node(data, options=options(lr=1e25, optimizer="sgd"), out=place, resume=True)
    run = Run(place)
    assert all(bool(torch.isfinite(value).all()) for value in run.load_checkpoint()["model"].values())
    assert run.result() is None


def test_weights_that_are_lost_never_replace_a_checkpoint(data, tmp_path):
    torch.manual_seed(0)
    model = hr.nn.GNN(8, 16, 3, layers=2)
    steps = []

    def lose(grad):
        steps.append(1)
        return grad * float("nan") if len(steps) == 3 else grad

    model.layers[0].conv.lin_r.weight.register_hook(lose)
    with pytest.raises(FloatingPointError, match=r"the weights \(layers\.0\.conv\..*\) are no longer finite at epoch 0, batch 3"):
        node(data, options(), model=model, out=tmp_path / "run")
    saved = Run(tmp_path / "run").load_checkpoint()
    assert saved["state"]["step"] == 2
    assert all(bool(torch.isfinite(value).all()) for value in saved["model"].values())
