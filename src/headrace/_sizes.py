"""Sizes in bytes, as people write and read them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str | int) -> int:
    """Bytes from a number or from a text such as `600MiB`, `1.5GiB`, `2GB`."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is not a size: write a number and a unit, such as 600MiB or 2GB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def format_size(size: float) -> str:
    """Bytes for a reader: `1.5 GiB`."""
    if size >= 1 << 60:
        return f"{size / 2**60:,.1f} EiB" if size < 1 << 80 else "more than 2**80 bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
