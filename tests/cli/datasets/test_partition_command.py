import json
import shutil
import sys
import types

import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.cluster import Part, is_partition
from headrace.graph.saved import array_file
from part_cases import assert_same_dataset, together

runner = CliRunner()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "tiny"
    data = hr.generate.community(nodes=400, edges=8000, classes=3, features=8, block=40)
    data.splits["train"] = data.splits["train"].flip(0)
    data.save(path)
    return path


def refused(*arguments):
    result = runner.invoke(app, ["partition", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines()[-1].startswith("headrace: ")
    return result.stderr


@pytest.mark.parametrize("columns", [[], ["--columns"]])
@pytest.mark.parametrize("by", ["hash", "ldg"])
def test_partition_writes_parts_and_shows_what_the_cut_came_to(saved, tmp_path, by, columns):
    result = runner.invoke(app, ["partition", str(saved), str(tmp_path / "parts"), "--parts", "3", "--by", by, *columns])
    assert result.exit_code == 0, result.output
    assert "needs about" in result.stderr
    assert "of disk and at most" in result.stderr
    assert "writing parts" in result.stderr
    features = "column" if columns else "row"
    for text in (f"3 parts by {by}, features by {features}", "edge cut", "of 8,000 edges", "balance", "ghosts", "cut edges", "KiB"):
        assert text in result.stdout
    parts = [Part.open(tmp_path / "parts", number, verify=True) for number in range(3)]
    assert_same_dataset(together(parts), hr.open(saved))


def test_partition_as_json_tells_all_figures(saved, tmp_path):
    results = {}
    for by in ("hash", "ldg"):
        result = runner.invoke(app, ["partition", str(saved), str(tmp_path / by), "--parts", "4", "--by", by, "--json"])
        assert result.exit_code == 0, result.output
        results[by] = json.loads(result.stdout)
    assert results["ldg"]["edge_cut"] < 0.7 * results["hash"]["edge_cut"]
    told = results["ldg"]
    assert (told["parts"], told["by"], told["columns"], told["path"]) == (4, "ldg", False, str(tmp_path / "ldg"))
    assert sum(share["nodes"] for share in told["shares"]) == 400
    assert sum(share["edges"] for share in told["shares"]) == 8000
    assert told["node_balance"] <= 1.05
    assert told["seconds"] > 0
    written = json.loads((tmp_path / "ldg" / "partition.json").read_text())["info"]
    assert all(written[name] == told[name] for name in ("edge_cut", "node_balance", "edge_balance", "ghosts", "shares"))


def test_info_tells_what_a_partition_is_and_whether_it_is_whole(saved, tmp_path):
    path = str(tmp_path / "parts")
    told = json.loads(runner.invoke(app, ["partition", str(saved), path, "--parts", "3", "--json"]).stdout)
    again = json.loads(runner.invoke(app, ["info", path, "--verify", "--json"]).stdout)
    assert again.pop("verified")
    told.pop("seconds")
    assert again == told
    assert "3 parts by hash" in runner.invoke(app, ["info", path]).stdout
    file = tmp_path / "parts" / "part-1" / "indices.1.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    damaged = runner.invoke(app, ["info", path, "--verify"])
    assert damaged.exit_code == 2
    assert "part-1" in damaged.stderr


def test_a_dataset_may_be_named(tmp_path):
    arguments = ["partition", "generate:community,nodes=100,edges=600,classes=3", str(tmp_path / "parts"), "--parts", "2"]
    assert runner.invoke(app, arguments).exit_code == 0
    assert is_partition(tmp_path / "parts")


def test_mistakes_are_told_in_one_line(saved, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    for arguments, text in (
        (["--parts", 0], "parts must be from 1 to the number of nodes, 400, not 0"),
        (["--parts", -7], "parts must be from 1 to the number of nodes, 400, not -7"),
        (["--parts", 401], "parts must be from 1 to the number of nodes, 400, not 401"),
        (["--parts", 2, "--by", "hsah"], "there is no partition by 'hsah': choose one of hash, ldg, rabbit, metis"),
        (["--parts", 2, "--by", "metis"], "a partition by 'metis' needs pymetis: pip install pymetis"),
        (["--parts", 9, "--columns"], "8 columns of features cannot be cut into 9 parts"),
    ):
        assert text in refused(saved, tmp_path / "out", *arguments)
        assert not (tmp_path / "out").exists()
    assert "there is no dataset at" in refused(tmp_path / "nothing", tmp_path / "out", "--parts", 2)
    assert runner.invoke(app, ["partition", str(saved), str(tmp_path / "out")]).exit_code == 2


def test_a_place_that_is_taken_is_refused(saved, tmp_path):
    assert runner.invoke(app, ["partition", str(saved), str(tmp_path / "parts"), "--parts", "2"]).exit_code == 0
    assert "holds a partition already: remove it" in refused(saved, tmp_path / "parts", "--parts", 3)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    assert "holds other files and is not a partition" in refused(saved, tmp_path / "mine", "--parts", 2)
    for command in (["train", "link"], ["reorder"]):
        result = runner.invoke(
            app, [*command, str(tmp_path / "parts"), *([str(tmp_path / "out")] if command == ["reorder"] else [])]
        )
        assert result.exit_code == 2
        assert "parts is a partition, not a dataset: one rank for each of its parts trains, torchrun" in result.output
    result = runner.invoke(app, ["train", "node", str(tmp_path / "parts")])
    assert result.exit_code == 2
    assert "cut into 2 parts, and there are 1 ranks: start 2 of them (torchrun --nproc-per-node 2)" in result.output


def test_a_disk_that_is_too_small_is_told_before_the_work(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=4096))
    assert "of disk in" in (told := refused(saved, tmp_path / "out", "--parts", 2))
    assert "4.0 KiB are free: make room" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "code", "text"), [(KeyboardInterrupt(), 130, "is as it was"), (OSError(28, "No space left"), 2, "No space")]
)
def test_an_interrupt_or_a_full_disk_leaves_nothing(saved, tmp_path, monkeypatch, error, code, text):
    appended = []

    def append(file, piece):
        appended.append(piece)
        if len(appended) == 9:
            raise error

    monkeypatch.setattr(array_file.ArrayFile, "append", append)
    result = runner.invoke(app, ["partition", str(saved), str(tmp_path / "parts"), "--parts", "3"])
    assert result.exit_code == code
    assert text in result.stderr
    assert not (tmp_path / "parts").exists()
