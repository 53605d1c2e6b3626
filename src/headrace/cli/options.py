"""Command-line options from a dataclass: one place says the name, the type, the default and the help of each."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

T = TypeVar("T")


def takes(options: type[T]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of `function(..., options: T)`: every field of the dataclass that has a help line becomes an option.

    A field of type `tuple[str, ...]` is given as a comma-separated list.
    """
    hints = get_type_hints(options)
    fields = [f for f in dataclasses.fields(options) if "help" in f.metadata]  # type: ignore[arg-type]

    def wrap(function: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.name != "options"]

        def command(**given: Any) -> None:
            values = {f.name: _value(hints[f.name], given.pop(f.name)) for f in fields}
            function(**given, options=options(**values))

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        for field in fields:
            listed = hints[field.name] == tuple[str, ...]
            parameters.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=",".join(field.default) if listed else field.default,  # type: ignore[arg-type]
                    annotation=Annotated[str if listed else hints[field.name], typer.Option(help=field.metadata["help"])],
                )
            )
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        return command

    return wrap


def _value(hint: Any, given: Any) -> Any:
    if hint == tuple[str, ...]:
        return tuple(part.strip() for part in given.split(",") if part.strip())
    return given
