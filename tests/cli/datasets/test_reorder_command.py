import json
import sys

import pytest
import torch
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app

runner = CliRunner()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "tiny"
    hr.generate.community(nodes=400, edges=8000, classes=3, features=8, block=40).save(path)
    return path


def test_reorder_writes_a_dataset_and_shows_what_changed(saved, tmp_path):
    result = runner.invoke(app, ["reorder", str(saved), str(tmp_path / "moved")])
    assert result.exit_code == 0, result.output
    for text in ("400 nodes and 8,000 edges", "order rabbit", "before", "after", "reuse in 32 rows", "edge span"):
        assert text in result.output
    before, after = hr.open(saved), hr.open(tmp_path / "moved", verify=True)
    assert after.x.equal(before.x[after.original_ids])


@pytest.mark.parametrize("order", ["rabbit", "first_neighbor", "degree"])
def test_reorder_as_json_tells_properties_before_and_after(saved, tmp_path, order):
    result = runner.invoke(app, ["reorder", str(saved), str(tmp_path / "moved"), "--order", order, "--dim", "32", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["order"], report["dim"]) == (order, 32)
    assert report["before"]["edges"] == report["after"]["edges"] == 8000
    assert report["before"]["row_bytes"] == 400 * 32 * 4
    if order == "rabbit":
        assert report["after"]["window_reuse"] > report["before"]["window_reuse"]
        assert report["after"]["edge_span"] < report["before"]["edge_span"]


def test_auto_writes_nothing_where_nothing_is_gained(saved, tmp_path):
    result = runner.invoke(app, ["reorder", str(saved), str(tmp_path / "moved"), "--order", "auto", "--epochs", "1"])
    assert result.exit_code == 0, result.output
    assert "as it is: no order can save more than 0.000 s in 1 epochs" in result.output
    assert "nothing was written" in result.output
    assert not (tmp_path / "moved").exists()


def test_extra_arrays_are_named_on_the_command_line(tmp_path):
    data = hr.generate.community(nodes=50, edges=200, classes=2, features=4)
    data.extra |= {"pairs": torch.tensor([[3, 4]]), "times": torch.rand(7)}
    data.save(tmp_path / "data")
    arguments = ["reorder", str(tmp_path / "data"), str(tmp_path / "moved"), "--order", "degree"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert "extra array 'pairs' of shape [1, 2] has no row per node (50)" in result.output
    assert not (tmp_path / "moved").exists()
    result = runner.invoke(app, [*arguments, "--ids", "pairs", "--keep", "times"])
    assert result.exit_code == 0, result.output
    moved = hr.open(tmp_path / "moved")
    assert moved.original_ids[moved.extra["pairs"]].tolist() == [[3, 4]]


def test_mistakes_are_told_in_one_line(saved, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    for arguments, text in (
        ([str(saved), "--order", "rabit"], "there is no order 'rabit': choose one of rabbit"),
        ([str(tmp_path / "nothing")], "there is no dataset at"),
        ([str(saved), "--order", "metis"], "the order 'metis' needs pymetis: pip install pymetis"),
    ):
        result = runner.invoke(app, ["reorder", arguments[0], str(tmp_path / "out"), *arguments[1:]])
        assert result.exit_code == 2
        assert f"headrace: {text}" in result.output
        assert not (tmp_path / "out").exists()


def test_info_tells_the_properties(saved):
    result = runner.invoke(app, ["info", str(saved)])
    assert result.exit_code == 0, result.output
    for text in ("symmetric", "edge span", "window reuse", "hubs", "degree cv", "isolated"):
        assert text in result.output
    facts = json.loads(runner.invoke(app, ["info", str(saved), "--json"]).stdout)
    assert facts["symmetric"] is True
    assert facts["window_reuse"] >= 1
