"""Documents are wrapped, so that they can be read and compared in a terminal."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTH = 120
PRINTED = "```python"  # what an example prints is as wide as it is


def too_wide(text):
    fence, wide = "", []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fence = "" if fence else line.strip()
        printed = fence == PRINTED and not line.startswith((">>>", "..."))
        if len(line) > WIDTH and not line.startswith("|") and not printed:
            wide.append(f"line {number}: {len(line)} characters")
    return wide


@pytest.mark.parametrize("path", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda path: path.name)
def test_lines_are_wrapped(path):
    assert too_wide(path.read_text()) == []
