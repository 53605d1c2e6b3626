"""`benchmarks/bits.py`: the same code gives the same hashes, resumed or not, and a hash that differs is named."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def bits():
    spec = importlib.util.spec_from_file_location("bits", Path(__file__).parents[2] / "benchmarks" / "bits.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bits"] = module  # where its dataclass looks for its annotations
    spec.loader.exec_module(module)
    yield module
    del sys.modules["bits"]


def test_hashes_repeat_and_a_changed_one_is_named(bits, tmp_path, monkeypatch, capsys):
    def run(*options):
        monkeypatch.setattr(sys, "argv", ["bits.py", "--only", "link-memory-transe*", *map(str, options)])
        return bits.main()

    before = tmp_path / "before.json"
    assert run("--json", before) == 0
    hashes = json.loads(before.read_text())
    assert list(hashes) == ["link-memory-transe", "link-memory-transe-resumed"]
    assert len(set(hashes.values())) == 1
    assert run("--compare", before) == 0
    before.write_text(json.dumps({**hashes, "link-memory-transe": "0123456789abcdef"}))
    assert run("--compare", before) == 1
    assert "link-memory-transe is " in capsys.readouterr().err


def test_every_run_of_the_cpu_has_options_that_exist(bits):
    names = [case.name for case in bits.cases("cpu")]
    assert len(set(names)) == len(names) >= 12
    assert {f"node-sage{bits.WITHOUT_DROPOUT}", "link-disk", f"link-encoder{bits.RESUMED}"} <= set(names)
