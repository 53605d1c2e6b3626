"""A partition holds pieces, not the dataset: one that is mapped from its files may be larger than memory."""

import json
from pathlib import Path

import pytest

import headrace as hr
from child import run_python

CHILD = Path(__file__).parents[2] / "parts_memory_child.py"
BOUND = 96 << 20


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "data"
    hr.generate.community(nodes=150_000, edges=5_000_000, classes=8, features=300, seed=0).save(path)
    return path


@pytest.mark.parametrize(
    ("by", "features"), [("ldg", "rows"), ("hash", "columns"), pytest.param("hash", "rows", marks=pytest.mark.slow)]
)
def test_memory_is_bounded_however_large_the_dataset_is(saved, tmp_path, by, features):
    done = run_python(str(CHILD), str(saved), str(tmp_path), by, features)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["data"] > 2 * BOUND
    assert 0 < told["took"] < BOUND < told["estimate"]
