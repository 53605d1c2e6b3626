"""Bytes as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str | int) -> int:
    """Bytes from a number or from a text such as `600MiB`, `1.5GiB`, `2GB`, `200M`.

    >>> parse_bytes("1.5GiB"), parse_bytes("2GB"), parse_bytes(64)
    (1610612736, 2000000000, 64)
    """
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is not a size: write a number and a unit, such as 600MiB or 2GB")
    return int(float(match[1]) * _UNITS[match[2].upper()])
