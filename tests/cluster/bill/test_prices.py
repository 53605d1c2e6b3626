"""The file of prices: what ships, and what a user may write."""

import re
from pathlib import Path

import pytest

from headrace.cluster.bill import prices as shipped
from headrace.cluster.bill import read_prices

TEXT = Path(shipped.__file__).with_name("prices.toml").read_text(encoding="utf-8")


def test_shipped_prices():
    prices = read_prices()
    assert (prices.gb_second, prices.request) == (0.0000166667, 0.0000002)
    assert prices.gb_per_vcpu == 1769 / 1024
    assert (prices.server("c5.2xlarge").hour, prices.server("c5.2xlarge").vcpus) == (0.34, 8)
    assert prices.server("p3.2xlarge").gpus == 1
    assert prices.date.year >= 2026
    for family in ("c5.", "c5n."):  # list prices go with the size
        rates = {round(s.hour / s.vcpus, 9) for s in prices.servers.values() if s.name.startswith(family)}
        assert len(rates) == 1


def test_an_own_file(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text(TEXT + '"desk" = { hour = 0, vcpus = 12, gpus = 1 }\n')
    assert read_prices(file).server("desk").vcpus == 12


def test_an_unknown_type_lists_the_known():
    with pytest.raises(ValueError, match=r"there is no price of a server 'c6.huge': known are c5.xlarge, c5.2xlarge, .*p3.2xlarge"):
        read_prices().server("c6.huge")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[lambda]", "[lambda", "is no TOML"),
        ("gb_second", "gb_seconds", "lambda lacks gb_second"),
        ("[objects]", "[object]", "the file lacks objects"),
        ("request = 0.0000002", "request = -1", "lambda.request must be a number from 0 up, not -1"),
        ("request = 0.0000002", "request = nan", "lambda.request must be a number from 0 up, not nan"),
        ("request = 0.0000002", 'request = "0"', "lambda.request must be a number from 0 up, not '0'"),
        ("1.7275390625", "0", "lambda.gb_per_vcpu must be above 0"),
        ("2026-11-17", '"yesterday"', "date must be a day, as 2026-11-17, not 'yesterday'"),
        ("vcpus = 16", "vcpus = 1.5", "must have whole numbers of vcpus"),
        ("gpus = 1", "gpu = 1", "has 'gpu', which means nothing: did you mean gpus?"),
        ("{ hour = 0.17, vcpus = 4 }", "0.17", 'servers."c5.xlarge" must be a table, not 0.17'),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path, old, new, message):
    assert old in TEXT
    file = tmp_path / "prices.toml"
    file.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        read_prices(file)
    assert str(file) in str(refusal.value)
