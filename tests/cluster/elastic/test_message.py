"""Messages: what is packed comes back, without copies, and no other bytes are believed."""

import json
import random
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cluster.elastic import pack, unpack

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5), (2, 0, 4), (2, 3, 4)])
def test_arrays_come_back_bit_by_bit(dtype, shape):
    array = torch.randint(0, 2, shape).to(dtype) if dtype == torch.bool else (torch.randn(shape) * 100).to(dtype)
    header, arrays = unpack(
        pack({"key": [1, "a", None, 0.5, {"b": True}]}, {"before": torch.ones(3, dtype=torch.uint8), "x": array})
    )
    assert header == {"key": [1, "a", None, 0.5, {"b": True}]}
    assert arrays["x"].dtype == dtype
    assert torch.equal(arrays["x"], array)
    assert torch.equal(arrays["before"], torch.ones(3, dtype=torch.uint8))


def test_special_numbers_and_strided_arrays_are_kept():
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 5e-324], dtype=torch.float64)
    square = torch.arange(12).view(3, 4)
    _, arrays = unpack(pack({}, {"odd": odd, "turned": square.T, "some": square[:, ::2]}))
    assert torch.equal(arrays["odd"].view(torch.int64), odd.view(torch.int64))
    assert torch.equal(arrays["turned"], square.T)
    assert torch.equal(arrays["some"], square[:, ::2])


def test_unpacking_copies_nothing():
    message = pack({}, {"flag": torch.tensor([True]), "x": torch.randn(100, 7), "n": torch.arange(5)})
    begin = torch.frombuffer(message, dtype=torch.uint8).data_ptr()
    for array in unpack(message)[1].values():
        assert begin <= array.data_ptr() < begin + len(message)
        assert (array.data_ptr() - begin) % 64 == 0


def test_bytes_at_an_odd_address_are_read_too():
    message = pack({}, {"x": torch.arange(5)})
    moved = memoryview(bytearray(b"?" + message))[1:]
    assert torch.equal(unpack(moved)[1]["x"], torch.arange(5))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"a": (1, 2)}, "plain"),
        ({"a": float("nan")}, "plain"),
        ({1: 2}, "plain"),
        ({"a": object()}, "plain"),
        ({"a": {1}}, "plain"),
    ],
)
def test_a_header_that_json_would_change_is_refused(header, said):
    with pytest.raises(ValueError, match=said):
        pack(header, {})


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (torch.zeros(2, dtype=torch.complex64), "complex64"),
        (torch.zeros(2, device="meta"), "CPU"),
        (torch.eye(2).to_sparse(), "dense"),
        (torch.zeros((1,) * 9), "9 dimensions"),
    ],
)
def test_an_array_that_cannot_travel_is_refused_by_name(array, said):
    with pytest.raises(ValueError, match=f"'weight'.*{said}"):
        pack({}, {"weight": array})


def _forged(content, data=b""):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    magic = pack({}, {})[:8]
    front = magic + struct.pack("<Q", len(text)) + text
    return front + bytes(-len(front) % 64) + data


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"HRACE",
        b"\x80\x04K\x01." * 10,  # a pickle
        pack({}, {})[:8] + struct.pack("<Q", 1 << 63) + b"{}",
        _forged(b"not json"),
        _forged(b"\xff\xfe"),
        _forged(b"[" * 100_000),
        _forged([1, 2]),
        _forged({"header": {}}),
        _forged({"header": [], "arrays": []}),
        _forged({"header": {}, "arrays": {}}),
        _forged({"header": {}, "arrays": [["x", "float32", [1 << 40]]]}, b"1234"),
        _forged({"header": {}, "arrays": [["x", "float32", [-1]]]}, b"1234"),
        _forged({"header": {}, "arrays": [["x", "float32", [1.0]]]}, b"1234"),
        _forged({"header": {}, "arrays": [["x", "float32", [True]]]}, b"1234"),
        _forged({"header": {}, "arrays": [["x", "float32", [0, 1 << 62, 1 << 62]]]}),
        _forged(b'{"header":{},"arrays":[["x","uint8",[' + b"9" * 5000 + b"]]]}"),
        _forged({"header": {}, "arrays": [["x", "float32", [1] * 100]]}, b"1234"),
        _forged({"header": {}, "arrays": [["x", "object", [1]]]}, b"1234"),
        _forged({"header": {}, "arrays": [["x", "uint8", [1]], ["x", "uint8", [1]]]}, bytes(65)),
        _forged({"header": {}, "arrays": [["x", "bool", [2]]]}, b"\x01\x02"),
        _forged({"header": {}, "arrays": [["x", "uint8", [1]]]}, b"12"),
        _forged({"header": {}, "arrays": [[1, "uint8", [1]]]}, b"1"),
        _forged({"header": {}, "arrays": ["x"]}),
    ],
)
def test_hostile_bytes_are_a_clear_error(hostile):
    with pytest.raises(ValueError, match="no message of headrace"):
        unpack(hostile)


def test_damaged_messages_never_crash():
    message = pack({"operation": "x", "n": 3}, {"a": torch.randn(9), "b": torch.ones(3, dtype=torch.bool), "c": torch.arange(4)})
    draw = random.Random(0)
    for _ in range(3000):
        damaged = bytearray(message)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        try:
            _, arrays = unpack(bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])]))
            assert sum(array.nbytes for array in arrays.values()) <= len(damaged)
        except ValueError:
            pass


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_by_value_error(noise):
    for message in (noise, pack({}, {})[:8] + noise, _forged(noise)):
        with pytest.raises(ValueError):
            unpack(message)
