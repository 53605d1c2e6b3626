"""Datasets by what a user writes: a directory, a known name, or `generate:products,scale=0.05`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from headrace.graph import generate
from headrace.graph.dataset import Dataset, open_dataset
from headrace.graph.known.load import load
from headrace.graph.snapshots import Snapshots

_GENERATE = "generate:"


def named(spec: str) -> Dataset:
    """The dataset that `spec` names.

    | spec | |
    | --- | --- |
    | `generate:products,scale=0.05` | a preset of `headrace.generate` (products, reddit, papers100M), with its arguments |
    | `generate:community,nodes=1000,edges=20000` | `headrace.generate.community`, with its arguments |
    | `generate:knowledge,nodes=1000,edges=20000,relations=5` | `headrace.generate.knowledge`, with its arguments |
    | `generate:events?nodes=1000&events=20000&repeat=0.8&new=0.02` | `headrace.generate.events`, with its arguments |
    | a directory | what `Dataset.save` or `headrace import` wrote there |
    | `cora` | `headrace.load("cora")` |

    >>> from headrace.graph.known.named import named
    >>> named("generate:community,nodes=100,edges=600,classes=3").num_nodes
    100
    """
    if spec.startswith(_GENERATE):
        return _generated(spec.removeprefix(_GENERATE))
    path = Path(spec)
    if path.exists() or path.is_absolute() or len(path.parts) > 1:
        return open_dataset(path, verify="small")
    try:
        return load(spec)
    except (ValueError, FileNotFoundError) as error:
        raise FileNotFoundError(f"{spec!r} is no directory here, and as a known dataset: {error}") from None


def named_snapshots(spec: str, *, every: float | None = None) -> Snapshots:
    """The snapshots that `spec` names: `generate:snapshots?nodes=1000&edges=20000`, or those of a dataset (`Snapshots.of`).

    every: the time unit of a snapshot, where the dataset is a list of events.

    >>> from headrace.graph.known.named import named_snapshots
    >>> len(named_snapshots("generate:snapshots?nodes=100&edges=600&steps=8"))
    8
    """
    name, written = _parsed(spec.removeprefix(_GENERATE))
    if spec.startswith(_GENERATE) and name == "snapshots":
        return generate.snapshots(**_arguments(name, written, generate.snapshots))
    return Snapshots.of(named(spec), every=every)


def _generated(text: str) -> Dataset:
    name, written = _parsed(text)
    kinds: dict[str, Callable[..., Dataset]] = {
        "community": generate.community,
        "knowledge": generate.knowledge,
        "events": generate.events,
    }
    if name == "snapshots":
        raise ValueError("generate:snapshots is a sequence of graphs, which `headrace train snapshot` takes")
    if name not in kinds and name not in generate.PRESETS:
        known = ", ".join([*generate.PRESETS, *kinds])
        raise ValueError(f"there is nothing to generate called {name!r}: choose one of {known}")
    make = kinds.get(name, generate.preset)
    arguments = _arguments(name, written, make)
    return make(**arguments) if name in kinds else make(name, **arguments)


def _arguments(name: str, written: list[tuple[str, str]], make: Callable[..., Any]) -> dict[str, Any]:
    accepted = {n: p for n, p in inspect.signature(make, eval_str=True).parameters.items() if n != "name"}
    arguments: dict[str, Any] = {}
    for key, value in written:
        if key not in accepted:
            similar = get_close_matches(key, accepted, n=1)
            raise ValueError(f"{name} has no argument {key!r}" + (f": did you mean {similar[0]!r}?" if similar else ""))
        arguments[key] = _value(key, value, accepted[key].annotation)
    missing = [n for n, p in accepted.items() if p.default is inspect.Parameter.empty and n not in arguments]
    if missing:
        raise ValueError(f"{name} needs {' and '.join(missing)}: {_GENERATE}{name},{','.join(f'{m}=...' for m in missing)}")
    return arguments


def _parsed(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The name and its arguments: of `community,nodes=10,splits=0.5,0.2,0.3`, or of the same as a URL has them, after `?`."""
    if "?" in text:
        name, _, query = text.partition("?")
        return name, parse_qsl(query, keep_blank_values=True)
    name, *parts = text.split(",")
    arguments: list[tuple[str, str]] = []
    for part in parts:
        key, equals, value = part.partition("=")
        if equals:
            arguments.append((key, value))
        elif arguments:  # a further number of the one before
            arguments[-1] = arguments[-1][0], f"{arguments[-1][1]},{part}"
        else:
            raise ValueError(f"{part!r} is no argument: write {_GENERATE}{name},{part or 'scale'}=...")
    return name, arguments


def _value(key: str, text: str, kind: Any) -> Any:
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if "tuple" in str(kind):
            return tuple(float(part) for part in text.split(","))
        if kind is float:
            return float(text)
        number = float(text) if "e" in text.lower() else int(text)  # 2e6 is a whole number too
        if number != int(number):
            raise ValueError
        return int(number)
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"{key}={text} cannot be read: give a number" if kind is not bool else f"{key} is true or false") from None
