"""`Prices`: what servers, calls and object requests cost, from a TOML file with a date."""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SHIPPED = Path(__file__).with_name("prices.toml")


@dataclass(frozen=True)
class Server:
    """A type of machine."""

    name: str
    hour: float  # dollars
    vcpus: int
    gpus: int = 0


@dataclass(frozen=True)
class Prices:
    """Dollars for everything that a run uses, as of `date` in `region`."""

    date: datetime.date
    region: str
    gb_second: float  # of a call: memory times seconds
    request: float  # a call
    gb_per_vcpu: float  # memory of a call that comes with one vCPU
    put: float  # an object written
    get: float  # an object read
    servers: Mapping[str, Server]

    def server(self, name: str) -> Server:
        """The type of that name; ValueError lists those that are known."""
        if name not in self.servers:
            raise ValueError(
                f"there is no price of a server {name!r}: known are {', '.join(self.servers)}; or add it to --prices FILE"
            )
        return self.servers[name]


def read_prices(path: Path | None = None) -> Prices:
    """The prices in a file; without one, those that ship with Headrace.

    >>> read_prices().server("c5.2xlarge").hour
    0.34
    """
    path = _SHIPPED if path is None else path
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}") from None
    try:
        return _prices(table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _prices(table: dict[str, Any]) -> Prices:
    _check_names("the file", table, ("date", "region", "lambda", "objects", "servers"))
    date, region = table["date"], table["region"]
    if not isinstance(date, datetime.date) or isinstance(date, datetime.datetime):
        raise ValueError(f"date must be a day, as 2026-11-17, not {date!r}")
    if not isinstance(region, str):
        raise ValueError(f"region must be a name in quotes, not {region!r}")
    calls = _numbers("lambda", table["lambda"], ("gb_second", "request", "gb_per_vcpu"))
    if not calls["gb_per_vcpu"]:
        raise ValueError("lambda.gb_per_vcpu must be above 0")
    objects = _numbers("objects", table["objects"], ("put", "get"))
    if not isinstance(table["servers"], dict) or not table["servers"]:
        raise ValueError("servers must be a table with at least one type")
    servers = {name: _server(name, about) for name, about in table["servers"].items()}
    return Prices(date, region, **calls, **objects, servers=servers)


def _server(name: str, about: Any) -> Server:
    numbers = _numbers(f'servers."{name}"', about, ("hour", "vcpus"), optional=("gpus",))
    vcpus, gpus = numbers["vcpus"], numbers.get("gpus", 0.0)
    if vcpus < 1 or vcpus % 1 or gpus % 1:
        raise ValueError(f'servers."{name}" must have whole numbers of vcpus, at least 1, and of gpus')
    return Server(name, numbers["hour"], int(vcpus), int(gpus))


def _numbers(where: str, table: Any, needed: tuple[str, ...], *, optional: tuple[str, ...] = ()) -> dict[str, float]:
    """The entries of a table, each a number that is not negative."""
    if not isinstance(table, dict):
        raise ValueError(f"{where} must be a table, not {table!r}")
    _check_names(where, table, needed, optional)
    for name, value in table.items():
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise ValueError(f"{where}.{name} must be a number from 0 up, not {value!r}")
    return {name: float(value) for name, value in table.items()}


def _check_names(where: str, table: Mapping[str, Any], needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    for name in needed:
        if name not in table:
            raise ValueError(f"{where} lacks {name}")
    for name in table:
        if name not in needed + optional:
            nearest = get_close_matches(name, needed + optional, n=1)
            suggestion = f"did you mean {nearest[0]}?" if nearest else f"it may have {', '.join(needed + optional)}"
            raise ValueError(f"{where} has {name!r}, which means nothing: {suggestion}")
