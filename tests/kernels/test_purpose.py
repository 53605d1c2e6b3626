"""What random streams are for has one list of numbers, that of native/philox.h."""

import re
from pathlib import Path

import pytest

from headrace import _native

HEADER = Path(__file__).parents[2] / "native" / "philox.h"
NUMBERS = {  # a seed means other draws if one of these changes
    "sample": 1,
    "shuffle": 2,
    "generate": 3,
    "dropout": 4,
    "attend": 5,
    "labor": 6,
    "negative": 7,
    "rounding": 8,
    "initial": 9,
    "residence": 10,
    "node_order": 11,
    "step": 12,
    "community": 16,
    "knowledge": 17,
    "events": 18,
}


def test_python_has_every_purpose_of_the_header_with_its_number():
    body = re.search(r"enum class Purpose[^{]*\{(.*?)\};", HEADER.read_text(), re.DOTALL)
    header = {name: int(number) for name, number in re.findall(r"^\s*(\w+) = (\d+),", body[1], re.MULTILINE)}
    assert {purpose.name: int(purpose) for purpose in _native.Purpose} == header == NUMBERS


def test_triton_kernels_have_the_numbers_of_the_header():
    pytest.importorskip("triton", reason="needs triton")
    from headrace.kernels._attend.triton_entries import _ATTEND
    from headrace.kernels._dropout.triton_dropout import _DROPOUT

    assert (_ATTEND.value, _DROPOUT.value) == (NUMBERS["attend"], NUMBERS["dropout"])


def test_streams_of_two_purposes_differ_and_any_other_number_is_refused():
    keys = {_native.stream_key(3, 1, 2, purpose) for purpose in _native.Purpose}
    assert len(keys) == len(_native.Purpose)
    with pytest.raises(TypeError):
        _native.stream_key(3, 1, 2, 99)
