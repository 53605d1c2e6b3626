"""The commands of every tutorial run, one after the other, in an empty folder."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app

PAGES = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"```(console|csv)\n(.*?)```", re.DOTALL)
WRITTEN = {
    "plain": ["towns.csv", "all.csv"],
    "relational": ["facts.parquet"],
    "timed": [],
    "typed": ["genres.csv"],
}


def commands_of(block: str) -> list[list[str]]:
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_the_tutorial_run(page, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    said: dict[str, str] = {}
    for kind, block in BLOCK.findall(page.read_text()):
        if kind == "csv":  # the first lines of a file, under its name
            name, *lines = block.splitlines()
            assert Path(name.removeprefix("# ")).read_text().splitlines()[: len(lines)] == lines
            continue
        for program, *arguments in commands_of(block):
            assert program == "headrace"
            done = CliRunner().invoke(app, arguments)
            assert done.exit_code == 0, f"{' '.join(arguments)}\n{done.output}"
            said[" ".join(arguments[:2])] = done.output
    for name in WRITTEN[page.stem]:
        assert Path(name).stat().st_size > 1000
    if page.stem == "plain":
        lines = Path("towns.csv").read_text().splitlines()
        assert lines[0] == "node,id,label,class,probability"
        assert len(lines) == 1201
        assert "probability of Birch" in Path("all.csv").read_text().splitlines()[0]
    if page.stem == "typed":
        assert all(line.split(",")[1].startswith("book:") for line in Path("genres.csv").read_text().splitlines()[1:])
    if page.stem == "timed":
        places = said["neighbors runs/visits"].split("?")[1]
        assert places.count("place:place") == 5
        assert "the latest 400 are for testing" in said["train link"]
        assert "not in order of time: sorted" in said["import person:visits:place=files/visits.csv"]


def test_every_tutorial_is_known() -> None:
    assert [page.stem for page in PAGES] == sorted(WRITTEN)
