"""Several official splits: one of them, or each in turn."""

import json

import pytest
import torch
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.train import Run, node
from training_cases import ctrl_c_at, small


@pytest.fixture(scope="module")
def several() -> hr.Dataset:
    """Three splits of which the last trains on wrong labels only by its choice of nodes: its accuracy differs."""
    data = hr.generate.community(nodes=400, edges=6000, classes=4, features=8, seed=3)
    extra = {}
    generator = torch.Generator().manual_seed(0)
    masks = {name: torch.zeros(3, 400, dtype=torch.bool) for name in ("train", "val", "test")}
    for number in range(3):
        order = torch.randperm(400, generator=generator)
        for name, part in zip(masks, order.split([100, 100, 200]), strict=True):
            masks[name][number, part] = True
    extra = {f"{name}_masks": mask for name, mask in masks.items()}
    return hr.Dataset(data.graph, x=data.x, y=data.y, splits={n: m[0].nonzero().flatten() for n, m in masks.items()}, extra=extra)


def single(data: hr.Dataset, number: int) -> hr.Dataset:
    splits = {name: data.extra[f"{name}_masks"][number].nonzero().flatten() for name in ("train", "val", "test")}
    return hr.Dataset(data.graph, x=data.x, y=data.y, splits=splits)


def test_a_split_by_number_is_that_split(several) -> None:
    for number in (0, 2):
        wanted = node(single(several, number), options=small(epochs=2))
        assert node(several, options=small(epochs=2, split=number)).test_accuracy == wanted.test_accuracy


def test_all_splits_give_mean_and_deviation(several, tmp_path) -> None:
    result = node(several, options=small(epochs=2, split="all"), out=tmp_path / "run")
    each = [float(node(single(several, n), options=small(epochs=2, seed=n)).test_accuracy) for n in range(3)]
    assert result.test_accuracy.values == pytest.approx(each)
    assert Run(tmp_path / "run").result()["test_accuracy"]["mean"] == pytest.approx(sum(each) / 3)
    assert len(node(several, options=small(epochs=1, split="all", repeats=6)).test_accuracy.values) == 6


def test_a_run_over_all_splits_goes_on_where_it_was_stopped(several, tmp_path) -> None:
    options = small(epochs=2, split="all")
    wanted = node(several, options=options)
    with pytest.raises(KeyboardInterrupt):
        node(several, options=options, out=tmp_path / "run", watcher=ctrl_c_at("step", 6))
    assert node(several, options=options, out=tmp_path / "run", resume=True).test_accuracy.values == wanted.test_accuracy.values


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "3"}, r"split is 3, and this dataset has splits 0 to 2"),
        ({"split": "all", "repeats": 4}, r"repeats must be a multiple of 3, not 4"),
        ({"split": "all", "storage": "resident", "memory": "1GiB"}, "for one split"),
    ],
)
def test_impossible_splits_are_refused(several, changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        node(several, options=small(**changes))


def test_split_is_an_option_of_the_command(several, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    several.save("data")
    arguments = ["train", "node", "./data", "--epochs", "1", "--hidden", "8", "--fanout", "3,3", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--split", "all"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout.splitlines()[-1])["test_accuracy"]["values"]) == 3
    bad = CliRunner().invoke(app, [*arguments, "--split", "some"])
    assert (bad.exit_code, "split must be a number from 0, or all" in bad.output) == (2, True)
