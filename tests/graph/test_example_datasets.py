"""Small datasets that are made by the package."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.graph.ingest import IngestOptions, ingest
from headrace.graph.known.examples import EXAMPLES
from headrace.graph.known.named import named


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_an_example_is_what_its_command_imports(here, name) -> None:
    done = CliRunner().invoke(app, ["example", name, "files"])
    assert done.exit_code == 0
    assert sum(path.stat().st_size for path in Path("files").iterdir()) < 500_000
    command = done.stdout.splitlines()[-1].split()
    assert command[:2] == ["headrace", "import"]
    assert CliRunner().invoke(app, [*command[1:], "--json", "--memory", "64GiB"]).exit_code == 0
    loaded, imported = named(name), hr.open("files-data")
    for mine, theirs in ((loaded.graph.indices, imported.graph.indices), (loaded.x, imported.x), (loaded.y, imported.y)):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine, theirs)
    assert loaded.extra.keys() == imported.extra.keys()
    assert loaded.info["name"] == name


def test_examples_are_listed_and_unknown_ones_refused(here) -> None:
    listed = CliRunner().invoke(app, ["example"]).stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(EXAMPLES)
    refused = CliRunner().invoke(app, ["example", "karate"])
    assert (refused.exit_code, "choose one of towns, facts, visits, library" in refused.output) == (2, True)


def test_a_folder_of_ones_own_comes_first(here, monkeypatch) -> None:
    import numpy as np

    (here / "mine/towns").mkdir(parents=True)
    np.savez(here / "mine/towns/towns.npz", edge_index=np.array([[0], [1]]), y=np.array([0, 1]))
    monkeypatch.setenv("HEADRACE_DATA", str(here / "mine"))
    assert hr.load("towns").num_nodes == 2
    assert hr.load("facts").num_nodes == 300  # which the folder has not
    with pytest.raises(FileNotFoundError, match="there is no dataset 'facts'"):
        hr.load("facts", root=here / "mine")


def test_a_sorted_file_is_not_sorted_again(here) -> None:
    EXAMPLES["visits"].write(here)
    header, *rows = (here / "visits.csv").read_text().splitlines()
    (here / "sorted.csv").write_text("\n".join([header, *sorted(rows, key=lambda row: row.split(",")[2])]) + "\n")
    reports = [
        ingest(IngestOptions(edges=(here / name,), output=here / "out", time_column="when", memory="64GiB"))
        for name in ("visits.csv", "sorted.csv")
    ]
    assert [report.put_in_order for report in reports] == [True, False]
