"""`pack` and `unpack`: a header of plain values and raw arrays as bytes. No pickle: bytes from anywhere are data, never code.

8 bytes   magic
8 bytes   length of the JSON text that follows, little endian
JSON      {"header": {...}, "arrays": [[name, type, shape], ...]}
arrays    in that order, each beginning at a multiple of 64 bytes
"""

from __future__ import annotations

import json
import math
import struct
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_MAGIC = b"HRACE\x00\x01\n"
_FRONT = struct.Struct("<8sQ")
_ALIGNMENT = 64
_MAX_DIMENSIONS = 8
_TYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
_TYPE_NAMES = {dtype: name for name, dtype in _TYPES.items()}

with warnings.catch_warnings():  # torch says once that a tensor over `bytes` can be written to; no reader here does that
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\x00", dtype=torch.uint8)


def pack(header: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> bytes:
    """One message. Values of the header are what JSON has: str, int, finite float, bool, None, lists and dicts of them.

    >>> header, arrays = unpack(pack({"epoch": 3}, {"x": torch.arange(3)}))
    >>> header, arrays
    ({'epoch': 3}, {'x': tensor([0, 1, 2])})
    """
    table = [[name, _type_name(name, tensor), list(tensor.shape)] for name, tensor in arrays.items()]
    try:
        text = json.dumps({"header": header, "arrays": table}, allow_nan=False, separators=(",", ":"))
        if json.loads(text)["header"] != header:
            raise ValueError("keys must be str, and sequences lists")
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a header must hold plain values only: {error}") from None
    encoded = text.encode()
    parts: list[Any] = [_FRONT.pack(_MAGIC, len(encoded)), encoded]
    size = _FRONT.size + len(encoded)
    for tensor in arrays.values():
        padding = -size % _ALIGNMENT
        parts += [bytes(padding), _raw(tensor)]
        size += padding + tensor.nbytes
    return b"".join(parts)


def unpack(message: bytes | bytearray | memoryview) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and arrays of a message. Arrays share its memory, so nobody may write to them.

    ValueError for anything that `pack` does not write. A message makes no allocation larger than itself.
    """
    view = memoryview(message).cast("B")
    header, table, data_begin = _front(view)
    arrays: dict[str, Tensor] = {}
    position = data_begin
    for name, dtype, shape in table:
        if name in arrays:
            raise _damaged(f"array {name!r} is there twice")
        begin = position + -position % _ALIGNMENT
        position = begin + math.prod(shape) * dtype.itemsize
        if position > len(view):
            raise _damaged(f"array {name!r} ends at byte {position}, and there are {len(view)}")
        arrays[name] = _tensor(view[begin:position], name, dtype, shape)
    if position != len(view):
        raise _damaged(f"{len(view) - position} bytes follow the last array")
    return header, arrays


def _type_name(name: str, tensor: Tensor) -> str:
    if not isinstance(name, str):
        raise ValueError(f"names of arrays must be str, not {name!r}")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(f"array {name!r} must be a dense tensor on the CPU, not {tensor.layout} on {tensor.device}")
    if tensor.dtype not in _TYPE_NAMES:
        raise ValueError(f"array {name!r} has type {tensor.dtype}; a message holds {', '.join(_TYPES)}")
    if tensor.dim() > _MAX_DIMENSIONS:
        raise ValueError(f"array {name!r} has {tensor.dim()} dimensions; a message holds up to {_MAX_DIMENSIONS}")
    return _TYPE_NAMES[tensor.dtype]


def _raw(tensor: Tensor) -> memoryview:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _front(view: memoryview) -> tuple[dict[str, Any], list[tuple[str, torch.dtype, list[int]]], int]:
    if len(view) < _FRONT.size:
        raise _damaged(f"it has {len(view)} bytes")
    magic, length = _FRONT.unpack_from(view)
    if magic != _MAGIC:
        raise _damaged(f"it begins with {magic!r}")
    if length > len(view) - _FRONT.size:
        raise _damaged(f"its header has {length} bytes, and {len(view) - _FRONT.size} follow")
    end = _FRONT.size + length
    try:
        content = json.loads(bytes(view[_FRONT.size : end]))
    except (ValueError, RecursionError) as error:
        raise _damaged(f"its header is no JSON: {error}") from None
    if not isinstance(content, dict) or set(content) != {"header", "arrays"}:
        raise _damaged("its JSON must be an object of `header` and `arrays`")
    header, table = content["header"], content["arrays"]
    if not isinstance(header, dict) or not isinstance(table, list):
        raise _damaged("`header` must be an object, `arrays` a list")
    return header, [_entry(entry) for entry in table], end


def _entry(entry: Any) -> tuple[str, torch.dtype, list[int]]:
    match entry:
        case [str(name), str(kind), list(shape)] if kind in _TYPES and len(shape) <= _MAX_DIMENSIONS:
            sizes_fit = all(type(size) is int and size >= 0 for size in shape)
            # An array without elements may have large sizes too, and torch multiplies them for its strides.
            if sizes_fit and math.prod(max(size, 1) for size in shape) * _TYPES[kind].itemsize < 1 << 62:
                return name, _TYPES[kind], shape
    raise _damaged(f"no array can be described by {str(entry)[:100]}")


def _tensor(data: memoryview, name: str, dtype: torch.dtype, shape: list[int]) -> Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    octets = torch.frombuffer(data, dtype=torch.uint8)
    if octets.data_ptr() % dtype.itemsize:
        octets = octets.clone()
    if dtype == torch.bool and int(octets.max()) > 1:
        raise _damaged(f"array {name!r} holds bytes that are neither true nor false")
    return octets.view(dtype).view(shape)


def _damaged(what: str) -> ValueError:
    return ValueError(f"these bytes are no message of headrace: {what}")
