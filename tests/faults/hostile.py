"""Arguments for native calls: good ones, in memory with guards around it, and what hostile callers make of them."""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
GUARD = 64  # bytes on either side of an array, which nothing may write
EXACT = "HEADRACE_FUZZ_EXACT" in os.environ  # for sanitizers, which see what leaves an allocation: arrays have one each
FLOATS = ("float32", "float64", "float16")
IDS = ("int32", "int64")
NUMBERS = [0, -1, 1, 2, 7, 2**31 - 1, 2**31, 2**32, 2**40, 2**48, 2**56, 2**60, 2**61, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63)]
REALS = [0.0, -1.0, 1.0, 0.5, 1e30, 1e-320, 1e308, float("nan"), float("inf"), -float("inf")]
BAD = np.array([-1, -2, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)])


class Draws:
    """The arguments of one call: a function of the seed and the call's number alone."""

    def __init__(self, seed: int, call: int) -> None:
        self.rng = np.random.default_rng([seed, call])
        self.memory: list[Array] = []

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def pick(self, values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def below(self, bound: int) -> int:
        return int(self.rng.integers(bound))

    def size(self, *, least: int = 0) -> int:
        """Small mostly; now and then large enough for several threads."""
        return max(least, self.below(9000) if self.chance(0.02) else self.pick((0, 1, 2, 3, 5, 8, 17, 40)))

    def threads(self) -> int:
        return int(self.pick((1, 1, 2, 2, 3, 0, -1, -(2**31))))

    def empty(self, shape: Any, dtype: Any) -> Array:
        shape, kind = (shape,) if isinstance(shape, int) else tuple(shape), np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        if EXACT:
            return np.zeros(shape, kind)
        memory = np.full(count * kind.itemsize + 2 * GUARD, 0xA5, np.uint8)
        self.memory.append(memory)
        return memory[GUARD : len(memory) - GUARD].view(kind).reshape(shape)

    def spoilt(self) -> bool:
        """Whether something was written outside of an array."""
        return any((memory[:GUARD] != 0xA5).any() or (memory[-GUARD:] != 0xA5).any() for memory in self.memory)

    def filled(self, values: Any, dtype: Any = None) -> Array:
        source = np.asarray(values, dtype)
        array = self.empty(source.shape, source.dtype)
        array[...] = source
        return array

    def ints(self, count: Any, bound: int, dtype: Any = "int64") -> Array:
        return self.filled(self.rng.integers(0, max(bound, 1), count), dtype)

    def reals(self, shape: Any, dtype: Any = "float32") -> Array:
        return self.filled(self.rng.random(shape), dtype)

    def sums(self, count: int) -> Array:
        """Running sums of positive weights."""
        return self.filled(np.cumsum(self.rng.random(count)), "float64")

    def graph(self, rows: int, columns: int, dtype: Any = None) -> tuple[Array, Array]:
        """Compressed rows with indices below `columns`."""
        degrees = self.rng.integers(0, 6, rows) if columns else np.zeros(rows, np.int64)
        if rows and columns and self.chance(0.05):
            degrees[0] = 5000
        indptr = self.filled(np.concatenate([[0], np.cumsum(degrees)]), "int64")
        return indptr, self.ints(int(indptr[-1]), columns, dtype or self.pick(IDS))

    def transposed(self, indptr: Array, indices: Array, columns: int) -> tuple[Array, Array, Array]:
        order = np.argsort(indices, kind="stable")
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        counts = np.bincount(indices, minlength=columns)
        first = np.concatenate([[0], np.cumsum(counts)])
        return self.filled(first, "int64"), self.filled(rows[order], indices.dtype), self.filled(order, indices.dtype)


def hostile(draws: Draws, value: Any, others: list[Array]) -> Any:
    """What a caller may pass in place of `value`; `others` are the arrays of the same call."""
    if isinstance(value, np.ndarray):
        return _array(draws, value, others)
    if isinstance(value, bool):
        return draws.pick((not value, None, 2))
    if isinstance(value, int):
        return draws.pick(NUMBERS)
    if isinstance(value, float):
        return draws.pick(REALS)
    if isinstance(value, str):
        return draws.pick(("", "none", "sum", "max", "dot", "sgd", None))
    if isinstance(value, list):
        if not value or draws.chance(0.3):
            return draws.pick(([], None, value * 2, [None]))
        at = draws.below(len(value))
        return [*value[:at], hostile(draws, value[at], others), *value[at + 1 :]]
    if value is None:
        return draws.pick((None, 0, draws.pick(others) if others else ()))
    return draws.pick((value, None, 0))


def _array(draws: Draws, value: Array, others: list[Array]) -> Any:
    kind = draws.below(16)
    if kind == 0:
        return draws.filled(np.zeros((), value.dtype))  # a single number
    if kind == 1:
        return draws.empty((0, *value.shape[1:]), value.dtype)
    if kind == 2:  # another type
        return value.astype(draws.pick(("int8", "int32", "int64", "float32", "float64", "bool", "complex64", "uint64")))
    if kind == 3:  # another number of dimensions
        return value.reshape(-1) if value.ndim > 1 else value.reshape(*value.shape, 1)
    if kind == 4:  # gaps between elements
        wide = draws.empty((*value.shape[:-1], 2 * value.shape[-1]) if value.ndim else (2,), value.dtype)
        return wide[..., ::2]
    if kind == 5:
        return value.T if value.ndim > 1 else value[::-1]
    if kind == 6 and value.ndim:  # too short
        return value[: draws.below(len(value) + 1)].copy()
    if kind == 7 and value.ndim:  # too long
        return np.concatenate([value, value, value[:1]])
    if kind in (8, 9, 10) and value.size and value.dtype.kind in "iu":  # what leads anywhere
        bad = value.copy() if EXACT else draws.filled(value)
        for _ in range(draws.below(3) + 1):
            bad.reshape(-1)[draws.below(bad.size)] = draws.pick(BAD).astype(bad.dtype)
        return bad
    if kind in (8, 9) and value.size and value.dtype.kind == "f":
        bad = draws.filled(value)
        with np.errstate(over="ignore"):
            bad.reshape(-1)[draws.below(bad.size)] = np.float64(draws.pick(REALS)).astype(bad.dtype)
        return bad
    if kind == 11:
        value = value.copy()
        value.flags.writeable = False
        return value
    if kind == 12 and value.ndim:  # of no bytes and any shape
        shape = list(value.shape)
        shape[draws.below(len(shape))] = 0
        shape[draws.below(len(shape))] = draws.pick((0, 1, 2**31, 2**40, 2**58))
        try:
            return np.empty(shape, value.dtype) if 0 in shape else value
        except ValueError:  # too large for numpy
            return value
    if kind == 13 and others:
        return draws.pick(others)  # the memory of another argument
    if kind == 14 and value.size > 1:
        return np.broadcast_to(value.reshape(-1)[:1], value.shape)
    return draws.pick((None, 3, [1, 2], "text", value.tolist() if value.size < 100 else None))
