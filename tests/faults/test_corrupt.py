"""Damaged files, some dozens of cases: see corrupt.py, which runs any number of them."""

import pytest
from corrupt import corrupt


def test_no_damage_is_trained_on_or_ends_in_a_traceback():
    summary = corrupt(0, 40)
    assert summary["failures"] == []
    assert summary["accepted"] + summary["refused"] == summary["cases"] == 40
    assert summary["refused"] > 10


@pytest.mark.slow
def test_no_damage_of_a_thousand_is_trained_on_or_ends_in_a_traceback():
    assert corrupt(1000, 1000)["failures"] == []
