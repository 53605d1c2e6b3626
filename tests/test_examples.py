"""Every example runs, and the examples of every docstring and every page say the truth."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import headrace
import warm

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if ">>>" in page.read_text())
MODULES = sorted(m.name for m in pkgutil.walk_packages(headrace.__path__, "headrace.") if "__main__" not in m.name)


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(script, tmp_path):
    done = warm.run(script, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_page_examples(page):
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted
    assert result.failed == 0
