"""Runs whose files or data are not what they were: named in a sentence, never trained or read on."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.graph.saved.fingerprint import fingerprint
from headrace.store.disk import files, partitioned
from headrace.train import LinkOptions, Run, export, link, node
from headrace.train.report.read import read_run
from training_cases import StopAt, StoppedError, assert_same_run, small

runner = CliRunner()
LINK = LinkOptions(dim=4, epochs=2, batch_size=64, negatives=8, chunks=2, threads=1, checkpoint_seconds=0.0, log_every=1)
DISK = replace(LINK, storage="disk", partitions=4, buffer=2)
NODE = small(epochs=2, batch_size=32, checkpoint_seconds=0.0, log_every=1)


@pytest.fixture(scope="module")
def triples():
    return hr.generate.knowledge(nodes=40, edges=300, relations=2, seed=1)


@pytest.fixture(scope="module")
def labeled():
    return hr.generate.community(nodes=120, edges=900, classes=3, features=4, seed=2, splits=(0.4, 0.2, 0.4))


def flipped(file, byte=None):
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if byte is None else byte] ^= 4
    file.write_bytes(data)


def exported(place, tmp_path):
    return np.load(export(place, tmp_path / f"{place.name}.npy", format="npy").files[0])


def refused(*words) -> str:
    """The one line that says why."""
    result = runner.invoke(app, [str(word) for word in words])
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines()[-1].startswith("headrace: ")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.stderr


# Data


def changed(data, name):
    """The data with one number of one part changed, and all counts the same."""
    if name == "edges":
        indices = data.graph.indices.clone()
        indices[7] = (indices[7] + 1) % data.num_nodes
        return replace(data, graph=hr.Graph(data.graph.indptr, indices))
    if name == "features":
        x = data.x.clone()
        x[50, 2] += 0.5
        return replace(data, x=x)
    if name == "labels":
        y = data.y.clone()
        y[60] = (y[60] + 1) % 3
        return replace(data, y=y)
    return replace(data, splits={**data.splits, "train": data.splits["train"].flip(0)})


@pytest.mark.parametrize("name", ["edges", "features", "labels", "train nodes"])
def test_a_node_run_on_other_data_of_the_same_size_is_refused(labeled, tmp_path, name):
    with pytest.raises(StoppedError):
        node(labeled, options=NODE, out=tmp_path / "run", watcher=StopAt("step", 2))
    with pytest.raises(ValueError, match=rf"another dataset: this one has other {name} .*; resume with the data"):
        node(changed(labeled, name), options=NODE, out=tmp_path / "run", resume=True)
    node(labeled, options=NODE, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize(("split", "name"), [("train", "training edges"), ("valid", "validation edges"), ("test", "test edges")])
def test_a_link_run_on_other_edges_as_many_is_refused(triples, tmp_path, split, name):
    with pytest.raises(StoppedError):
        link(triples, LINK, out=tmp_path / "run", watcher=StopAt("step", 2))
    other = triples.extra[split].clone()
    other[3, 0] = (other[3, 0] + 1) % 40
    with pytest.raises(ValueError, match=rf"another dataset: this one has other {name}"):
        link(replace(triples, extra={**triples.extra, split: other}), LINK, out=tmp_path / "run", resume=True)


def test_the_same_data_from_elsewhere_is_accepted(labeled, triples, tmp_path):
    node(labeled, options=NODE, out=tmp_path / "whole")
    with pytest.raises(StoppedError):
        node(labeled, options=NODE, out=tmp_path / "run", watcher=StopAt("step", 2))
    labeled.save(tmp_path / "saved")
    opened = hr.open(tmp_path / "saved")
    wide = replace(opened, graph=hr.Graph(opened.graph.indptr, opened.graph.indices.long()), y=opened.y.int())
    node(wide, options=NODE, out=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    with pytest.raises(StoppedError):
        link(triples, LINK, out=tmp_path / "links", watcher=StopAt("step", 2))
    triples.save(tmp_path / "triples")
    again = hr.open(tmp_path / "triples")
    long = {name: array.long() for name, array in again.extra.items()}
    link(replace(again, extra=long), LINK, out=tmp_path / "links", resume=True)


def test_a_fingerprint_is_of_the_numbers_not_of_how_they_are_kept(monkeypatch):
    array = torch.arange(3000).view(1000, 3)
    for same in (array.int(), array.t().contiguous().t(), torch.cat([array, array])[:1000]):
        assert fingerprint(same) == fingerprint(array)
    for other in (array + 1, array.view(3000), array.float(), array.flip(0)):
        assert fingerprint(other) != fingerprint(array)
    assert fingerprint(torch.zeros(0, 3)) != fingerprint(torch.zeros(0, 4))
    monkeypatch.setattr("headrace.graph.saved.fingerprint._WHOLE", 1 << 10)
    monkeypatch.setattr("headrace.graph.saved.fingerprint._SAMPLE", 1 << 5)
    large = torch.arange(1 << 16)
    for place in (0, 1 << 15, (1 << 16) - 1):
        other = large.clone()
        other[place - 40 : place + 40] += 1
        other[place] += 1
        assert fingerprint(other) != fingerprint(large)


# Rows that were being written


@pytest.fixture(scope="module")
def whole(triples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    link(triples, DISK, out=folder / "whole")
    return exported(folder / "whole", folder)


@pytest.mark.parametrize("moment", ["partition 0", "partition 2", "commit", "meta.json", "renamed"])
def test_a_run_that_is_killed_while_its_rows_are_created_goes_on_to_the_same_bits(triples, whole, tmp_path, monkeypatch, moment):
    """Killed: nothing is cleaned up after it."""
    write, replace_file = partitioned.write_initial, files.write_sealed

    def dies(found, partition, *more, **options):
        if moment == f"partition {partition}":
            found.next_file(partition).write_bytes(b"torn")
            raise StoppedError
        return write(found, partition, *more, **options)

    def dies_at_meta(path, value, **options):
        if moment == "meta.json":
            path.with_name("meta.json.new").write_text('{"format": 1, "ki')
            raise StoppedError
        replace_file(path, value, **options)
        if moment == "renamed":
            raise StoppedError

    def dies_at_commit(self, calls, extra):
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(partitioned, "write_initial", dies)
        patch.setattr(files, "write_sealed", dies_at_meta)
        patch.setattr(files.PartitionFiles, "abandon", lambda self: None)
        if moment == "commit":
            patch.setattr(files.PartitionFiles, "commit", dies_at_commit)
        with pytest.raises(StoppedError):
            link(triples, DISK, out=tmp_path / "run")
    with pytest.raises(FileExistsError, match="holds a run already: resume it"):
        link(triples, DISK, out=tmp_path / "run")
    link(triples, DISK, out=tmp_path / "run", resume=True)
    assert np.array_equal(exported(tmp_path / "run", tmp_path), whole)


def test_a_disk_that_is_full_while_rows_are_created_can_be_gone_on_from(triples, whole, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    for name in ("pwritev", "statvfs"):
        place = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match=r"disk is full|No space left"):
                link(triples, DISK, out=place)
        link(triples, DISK, out=place, resume=True)
        assert np.array_equal(exported(place, tmp_path), whole)


KILLED = """
import os, signal, sys
import headrace as hr
from headrace.store.disk import partitioned
from headrace.train import LinkOptions, link
write = partitioned.write_initial
def dies(files, partition, *more, **options):
    write(files, partition, *more, **options)
    if partition == 2:
        os.kill(os.getpid(), signal.SIGKILL)
partitioned.write_initial = dies
options = LinkOptions(dim=4, epochs=1, threads=1, storage="disk", partitions=4, buffer=2)
link(hr.generate.knowledge(nodes=40, edges=300, relations=2, seed=1), options, out=sys.argv[1])
"""


def test_a_process_that_is_killed_while_rows_are_created(triples, tmp_path):
    died = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "run"], check=False, timeout=120)
    assert died.returncode == -signal.SIGKILL
    assert not (tmp_path / "run" / "rows" / "meta.json").exists()
    options = LinkOptions(dim=4, epochs=1, threads=1, storage="disk", partitions=4, buffer=2)
    link(triples, options, out=tmp_path / "run", resume=True)
    link(triples, options, out=tmp_path / "whole")
    assert np.array_equal(exported(tmp_path / "run", tmp_path), exported(tmp_path / "whole", tmp_path))


def test_trained_rows_without_their_meta_json_are_not_written_over(triples, tmp_path):
    link(triples, DISK, out=tmp_path / "run")
    (tmp_path / "run" / "rows" / "meta.json").unlink()
    before = sorted(file.name for file in (tmp_path / "run" / "rows").iterdir())
    with pytest.raises(ValueError, match=r"meta\.json is missing: the store is damaged"):
        link(triples, DISK, out=tmp_path / "run", resume=True)
    assert sorted(file.name for file in (tmp_path / "run" / "rows").iterdir()) == before


# Files


@pytest.fixture(scope="module")
def runs(triples, labeled, tmp_path_factory):
    """Finished runs and interrupted ones, and the data they are of."""
    folder = tmp_path_factory.mktemp("runs")
    triples.save(folder / "triples")
    labeled.save(folder / "labeled")
    encoded = replace(LINK, encoder="sage", fanout=(3,), hidden=4)
    for name, options in (
        ("disk", DISK),
        ("encoded", replace(encoded, storage="disk", partitions=4, buffer=2)),
        ("memory", encoded),
    ):
        link(triples, options, out=folder / name, spec=str(folder / "triples"))
    with pytest.raises(StoppedError):
        link(triples, DISK, out=folder / "cut", watcher=StopAt("step", 4), spec=str(folder / "triples"))
    node(labeled, options=NODE, out=folder / "node", spec=str(folder / "labeled"))
    with pytest.raises(StoppedError):
        node(labeled, options=NODE, out=folder / "node-cut", watcher=StopAt("step", 2), spec=str(folder / "labeled"))
    return folder


@pytest.fixture
def place(runs, tmp_path):
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path / "runs"


def readers(run, tmp_path):
    yield "export", run, "--out", tmp_path / "rows.parquet"
    yield "neighbors", run, "3", "--numbers"


def test_a_flipped_bit_in_a_partition_is_named_by_all_that_read_it(place, tmp_path):
    for run in ("disk", "cut"):
        for file in (place / run / "rows").glob("partition.*"):
            flipped(file, 3)
    said = [refused(*words) for words in readers(place / "disk", tmp_path)]
    said.append(refused("train", "link", place / "triples", "--out", place / "cut", "--resume"))
    for text in said:
        assert "partition." in text
        assert "is damaged: its checksum is not the one that was written; restore the directory from a copy" in text


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_a_damaged_extra_file_is_named_by_all_that_read_it(place, tmp_path, damage):
    for run in ("disk", "cut"):
        file = next((place / run / "rows").glob("extra.*"))
        if damage == "flip":
            flipped(file)
        elif damage == "truncate":
            os.truncate(file, file.stat().st_size // 2)
        else:
            file.unlink()
    said = [refused(*words) for words in readers(place / "disk", tmp_path)]
    said.append(refused("train", "link", place / "triples", "--out", place / "cut", "--resume"))
    assert all("extra." in text for text in said)


@pytest.mark.parametrize("run", ["encoded", "memory"])
def test_a_flipped_bit_in_encoded_rows_is_found_by_who_reads_them_all(place, tmp_path, run):
    for words in readers(place / run, tmp_path):
        assert runner.invoke(app, [str(word) for word in words]).exit_code == 0
        (tmp_path / "rows.parquet").unlink(missing_ok=True)
        (tmp_path / "rows.relations.parquet").unlink(missing_ok=True)
    flipped(place / run / "encoded.npy")
    for words in readers(place / run, tmp_path):
        assert "encoded.npy is damaged: its checksum is wrong" in refused(*words)
    assert not (tmp_path / "rows.parquet").exists()


def test_a_damaged_log_is_named_on_resume_and_counted_in_a_report(place):
    for run, task, data in (("node-cut", "node", "labeled"), ("cut", "link", "triples")):
        log = place / run / "metrics.jsonl"
        before = log.read_bytes()
        for damaged in (before.replace(b'"loss": ', b'"loss": 1'), before[:30], b"", b"\n".join([b"{", before])):
            log.write_bytes(damaged)
            said = refused("train", task, place / data, "--out", place / run, "--resume")
            assert "metrics.jsonl" in said
            assert "restore it from a copy, or remove it to go on without its lines" in said
        log.write_bytes(before.replace(b'"loss": ', b'"loss": 1', 1))
        assert read_run(place / run).repeats[0].unreadable == 1
        log.unlink()
        went_on = runner.invoke(app, ["train", task, str(place / data), "--out", str(place / run), "--resume"])
        assert went_on.exit_code == 0, went_on.output


def test_a_report_tells_that_the_log_of_a_finished_run_was_cut(place):
    assert read_run(place / "node").repeats[0].unreadable == 0
    log = place / "node" / "metrics.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    assert read_run(place / "node").repeats[0].unreadable == 1


@pytest.mark.parametrize("name", ["options.json", "result.json", "trace.json"])
def test_a_number_changed_in_a_json_file_is_found(place, name):
    file = place / "node" / name
    text = file.read_text()
    digit = next(at for at in range(len(text) // 2, len(text)) if text[at] in "2468")
    file.write_text(text[:digit] + "3" + text[digit + 1 :])
    with pytest.raises(ValueError, match="its checksum is wrong"):
        hr._sealed.unsealed(file.read_text())
    if name == "options.json":
        assert "options.json is damaged" in refused("report", place / "node", "--out", place / "page.html")
        assert "options.json is damaged" in refused("predict", place / "node", place / "labeled", "--out", place / "p.parquet")
    else:
        assert read_run(place / "node").repeats[0].unreadable == 1
    if name == "result.json":
        with pytest.raises(ValueError, match=r"result\.json is damaged: .*; remove it and resume the run"):
            Run(place / "node").result()


def test_checkpoints_in_each_other_s_place_are_told(place):
    last, best = (place / "node" / "checkpoints" / f"{name}.pt" for name in ("last", "best"))
    shutil.move(best, place / "aside")
    shutil.move(last, best)
    shutil.move(place / "aside", last)
    assert "is the checkpoint 'best' of a run, not 'last'" in refused(
        "train", "node", place / "labeled", "--out", place / "node", "--resume"
    )
    assert "is the checkpoint 'last' of a run, not 'best'" in refused(
        "predict", place / "node", place / "labeled", "--out", place / "p.parquet"
    )


def test_a_run_is_resumed_by_the_command_that_began_it(place):
    said = refused("train", "node", place / "triples", "--out", place / "disk", "--resume")
    assert "is a run of train link: resume it by that command, not by train node" in said
    said = refused("train", "link", place / "labeled", "--out", place / "node", "--resume")
    assert "is a run of train node: resume it by that command, not by train link" in said


def test_options_of_another_version_are_a_sentence(place):
    file = place / "node" / "options.json"
    header = json.loads(file.read_text())
    del header["crc32"]
    for options, message in (
        ({**header["options"], "magic": 1}, "name magic, which this version does not know"),
        ({**header["options"], "epochs": "many"}, "wrong type"),
    ):
        file.write_text(json.dumps({**header, "options": options}))
        assert message in refused("train", "node", place / "labeled", "--out", place / "node", "--resume")


def test_commands_verify_small_datasets(place, tmp_path):
    flipped(next((place / "labeled").glob("x.*")), -3)
    flipped(next((place / "triples").glob("extra_train.*")), -3)
    for words in (
        ("info", place / "labeled"),
        ("train", "node", place / "labeled", "--out", tmp_path / "new"),
        ("train", "link", place / "triples", "--out", tmp_path / "new"),
        ("predict", place / "node", place / "labeled", "--out", tmp_path / "p.parquet"),
    ):
        assert "is damaged: its checksum is not the one in meta.json; restore the dataset" in refused(*words)
