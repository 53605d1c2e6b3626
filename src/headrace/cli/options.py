"""Command-line options from a dataclass: one place says the name, the type, the default and the help of each."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from headrace.cli.config import read_config
from headrace.cli.torchrun import is_first, leave

T = TypeVar("T")
_LISTS = (tuple[str, ...], tuple[int, ...])


def takes(options: type[T], *, config: bool = False, unless: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of `function(..., options: T)`: every field of the dataclass that has a help line becomes an option.

    A field without a default becomes an argument. A field of type `tuple[str, ...]` or `tuple[int, ...]` is given as a
    comma-separated list. With `config`, `--config file.toml` gives the same names; what stands on the command line wins. A function
    that has a parameter `chosen` is also told the values that the user chose, in either place. Where its flag `unless` is set, it
    makes the options of these itself, and is handed the defaults.
    """
    hints = get_type_hints(options)
    fields = [f for f in dataclasses.fields(options) if "help" in f.metadata]  # type: ignore[arg-type]

    def wrap(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True).parameters
        own = [p for p in signature.values() if p.name not in ("options", "chosen")]

        def command(context: typer.Context, **arguments: Any) -> None:
            values = {f.name: arguments.pop(f.name) for f in fields}
            chosen: dict[str, Any] = {}
            try:
                if config and arguments.pop("config") is not None:
                    chosen = read_config(context.params["config"], options)
                chosen |= {n: _value(hints[n], v) for n, v in values.items() if context.get_parameter_source(n).name != "DEFAULT"}  # type: ignore[union-attr]
                deferred = bool(unless) and arguments[unless]
                built = options() if deferred else options(**({n: _value(hints[n], v) for n, v in values.items()} | chosen))
            except (ValueError, OSError) as error:
                raise refused(str(error), options) from None
            function(**arguments, options=built, **({"chosen": chosen} if "chosen" in signature else {}))

        parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
        parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        parameters += [_parameter(field, hints[field.name]) for field in fields]
        if config:
            text = "a TOML file of options, by the names below with _ for -; the command line wins"
            kind = Annotated[Path | None, typer.Option("--config", help=text)]
            parameters.insert(
                1 + len(own), inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            )
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        return command

    return wrap


def refused(message: str, options: type[Any] | None = None) -> typer.Exit:
    """Say what is wrong with the user's input, in one line and in the words of the command line; to be raised.

    Under torchrun rank 0 says it for all.
    """
    text = " ".join(message.split())
    # The library says num_nodes where the command line says --num-nodes.
    if names := "|".join(f.name for f in dataclasses.fields(options) if "_" in f.name) if options is not None else "":
        text = re.sub(rf"(?<![\w./-])({names})(?![\w./])", lambda match: "--" + match[1].replace("_", "-"), text)
    if is_first():
        typer.echo(f"headrace: {text}", err=True)
    return leave(2)


def _parameter(field: dataclasses.Field[Any], hint: Any) -> inspect.Parameter:
    kind, text = _given_as(hint), field.metadata["help"]
    choices = "|".join(get_args(hint)) if get_origin(hint) is Literal else None
    if field.default is dataclasses.MISSING:
        argument: Any = Annotated[kind, typer.Argument(help=text, show_default=False)]  # type: ignore[valid-type]
        return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=argument)
    name = f"--{field.name.replace('_', '-')}"
    name += f"/--no-{name.removeprefix('--')}" if kind is bool else ""  # a flag may be on in a config file, or for a dataset
    default = (",".join(map(str, field.default)) or None) if hint in _LISTS else field.default
    option: Any = Annotated[kind, typer.Option(name, help=text, metavar=choices)]  # type: ignore[valid-type]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=option)


def _given_as(hint: Any) -> Any:
    """The type typer is told of."""
    if hint in _LISTS:
        return str | None
    if hint == tuple[Path, ...]:
        return list[Path]
    if get_origin(hint) is Literal:
        return str
    if get_origin(hint) in (Union, types.UnionType) and str in get_args(hint):  # a name or a number: a word, in any case
        return str | None if type(None) in get_args(hint) else str
    return hint


def _value(hint: Any, value: Any) -> Any:
    if hint not in _LISTS:
        return tuple(value) if isinstance(value, list) else value
    parts = [part.strip() for part in (value or "").split(",") if part.strip()]
    try:
        return tuple(int(part) for part in parts) if hint == tuple[int, ...] else tuple(parts)
    except ValueError:
        raise ValueError(f"{value!r} is no list of whole numbers: write them with commas between, as in 15,10,5") from None
