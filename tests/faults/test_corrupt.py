"""Damaged files, some dozens of cases: see corrupt.py, which runs any number of them."""

from collections import Counter

import pytest
from corrupt import Bench, corrupt, make_files


@pytest.mark.usefixtures("one_thread")
def test_no_damage_is_trained_on_or_ends_in_a_traceback(tmp_path):
    bench = Bench(tmp_path / "whole", tmp_path / "work")
    bench.whole.mkdir()
    make_files(bench.whole)
    cases = [bench.case(seed) for seed in range(36)]
    assert [what for verdict, what in cases if verdict == "failed"] == []
    assert min(Counter(verdict for verdict, _ in cases).values()) > 5  # some damage matters, some does not


@pytest.mark.slow
def test_no_damage_of_a_thousand_is_trained_on_or_ends_in_a_traceback():
    assert corrupt(1000, 1000)["failures"] == []
