"""Operations that a task may name: stateless functions of options and arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

Operation = Callable[[Mapping[str, Any], Mapping[str, Tensor]], Mapping[str, Tensor]]

_operations: dict[str, Operation] = {}


def operation(name: str) -> Callable[[Operation], Operation]:
    """Register a function of (options, arrays) that returns arrays, under a name that tasks use.

    Workers find what the modules they import have registered. It must not write to its arrays.

    >>> @operation("double")
    ... def double(options, arrays):
    ...     return {"y": 2 * arrays["x"]}
    """

    def register(function: Operation) -> Operation:
        if _operations.setdefault(name, function) is not function:
            raise ValueError(f"there is an operation {name!r} already: {_operations[name].__module__}.{_operations[name].__name__}")
        return function

    return register


def find_operation(name: object) -> Operation:
    """The function of that name, ValueError if there is none."""
    if not isinstance(name, str) or name not in _operations:
        raise ValueError(f"no operation is called {str(name)[:100]!r}: there are {', '.join(sorted(_operations)) or 'none'}")
    return _operations[name]
