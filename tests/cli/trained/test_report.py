import json

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.trained.report import report

runner = CliRunner()
app = typer.Typer()
app.command()(report)


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "sage"
    path.mkdir()
    (path / "options.json").write_text(json.dumps({"format": 2, "name": "sage", "options": {"model": "sage"}}))
    (path / "metrics.jsonl").write_text(json.dumps({"kind": "epoch", "epoch": 0, "seconds": 1.0, "loss": 0.5}) + "\n")
    return path


def test_report_writes_a_page_about_all_runs(run, tmp_path):
    (tmp_path / "gat").mkdir()
    (tmp_path / "gat" / "options.json").write_text(json.dumps({"format": 2, "name": "gat"}))
    out = tmp_path / "comparison.html"
    result = runner.invoke(app, [str(run), str(tmp_path / "gat"), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "comparison.html" in result.output
    assert "<title>2 runs: sage, gat</title>" in out.read_text(encoding="utf-8")


def test_the_page_is_report_html_unless_said_otherwise(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(app, ["sage"]).exit_code == 0
    assert (tmp_path / "report.html").exists()


def test_something_else_than_a_run_is_one_line_and_status_2(run, tmp_path):
    out = tmp_path / "report.html"
    for path, reason in [(tmp_path / "nothing", "there is no run at"), (tmp_path, "is no run: it has no options.json")]:
        result = runner.invoke(app, [str(run), str(path), "--out", str(out)])
        assert result.exit_code == 2
        assert result.output.count("\n") == 1
        assert reason in result.output
        assert str(path) in result.output
    assert not out.exists()


def test_a_page_that_cannot_be_written_is_one_line_and_status_2(run, tmp_path):
    result = runner.invoke(app, [str(run), "--out", str(tmp_path / "missing" / "report.html")])
    assert result.exit_code == 2
    assert "there is no directory" in result.output
