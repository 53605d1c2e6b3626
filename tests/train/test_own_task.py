"""A recipe of a user's own (examples/own_task.py): its state resumes, its measure is shown, and ranks share it."""

import importlib.util
from pathlib import Path

import pytest

from headrace.train import Run
from headrace.train.report import write_report
from rank_jobs import Job
from training_cases import assert_same_weights, ctrl_c_at

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_task.py"


@pytest.fixture(scope="module")
def own_task():
    spec = importlib.util.spec_from_file_location("own_task", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def alone(own_task, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    rmse, recipe = own_task.main(out)
    return out, rmse, recipe


def test_a_smaller_error_is_better(alone):
    out, rmse, recipe = alone
    epochs, end = Run(out).metrics("epoch"), Run(out).metrics("end")[0]
    errors = [epoch["val_rmse"] for epoch in epochs]
    assert end["best_epoch"] == errors.index(min(errors))
    assert end["test_rmse"] == rmse
    assert (end["val_rmse"], recipe.update is not None) == (min(errors), True)
    assert epochs[-1]["val"]["smooth"] == pytest.approx(recipe.smooth)


def test_it_resumes_to_the_same_bits_with_its_state(own_task, alone, tmp_path, monkeypatch):
    fit = own_task.hr.train.fit
    stopped = lambda *args, **more: fit(*args, watcher=ctrl_c_at("epoch", 2), **more)  # noqa: E731
    monkeypatch.setattr(own_task.hr.train, "fit", stopped)
    with pytest.raises(KeyboardInterrupt):
        own_task.main(tmp_path / "run")
    monkeypatch.undo()
    rmse, recipe = own_task.main(tmp_path / "run", resume=True)
    assert (rmse, recipe.smooth) == (alone[1], alone[2].smooth)
    assert_same_weights(recipe.model.state_dict(), alone[2].model.state_dict())


def test_two_ranks_give_the_same_bits(alone, tmp_path):
    job = Job(EXAMPLE, [tmp_path / "run"], size=2, folder=tmp_path)
    try:
        assert job.wait(240) == [0, 0], job.said(0) + job.said(1)
    finally:
        job.end()
    saved = [Run(out).load_checkpoint("best")["model"] for out in (tmp_path / "run", alone[0])]
    assert_same_weights(*saved)
    assert Run(tmp_path / "run").metrics("end")[0]["test_rmse"] == alone[1]


def test_the_report_shows_its_measure(alone, tmp_path):
    write_report([alone[0]], tmp_path / "report.html")
    assert "rmse" in (tmp_path / "report.html").read_text()
