"""Options from a TOML file, by the names of the dataclass."""

from __future__ import annotations

import dataclasses
import sys
import types
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_config(path: Path, options: type[Any]) -> dict[str, Any]:
    """The values in the file, checked against the fields of `options`: an unknown name suggests the nearest."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML: {error}") from None
    hints = get_type_hints(options)
    known = [f.name for f in dataclasses.fields(options) if "help" in f.metadata]
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            suggestion = f"did you mean {nearest[0]!r}?" if nearest else f"it may be one of {', '.join(sorted(known))}"
            raise ValueError(f"{path} sets {key!r}, which is no option: {suggestion}")
        values[name] = _checked(f"{path}: {key}", value, hints[name])
    return values


def _checked(where: str, value: Any, hint: Any) -> Any:
    if hint in (tuple[int, ...], tuple[str, ...]):
        kind = get_args(hint)[0]
        if not isinstance(value, list) or not all(type(v) is kind for v in value):
            raise ValueError(f"{where} must be a list of {'whole numbers' if kind is int else 'strings'}, not {value!r}")
        return tuple(value)
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"{where} must be one of {', '.join(map(str, get_args(hint)))}, not {value!r}")
        return value
    kinds = [k for k in get_args(hint) if k is not type(None)] if get_origin(hint) in (Union, types.UnionType) else [hint]
    if float in kinds and type(value) is int:
        return float(value)
    if type(value) not in kinds:
        raise ValueError(f"{where} must be {' or '.join(k.__name__ for k in kinds)}, not {value!r}")
    return value
