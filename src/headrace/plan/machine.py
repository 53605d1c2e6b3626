"""`Machine`: what a device was measured to do, in the few figures that the cost model asks for."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import log
from pathlib import Path
from typing import Any

import torch

from headrace._files import write_whole

_KINDS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True)
class RowRead:
    """Seconds that an aggregation takes per entry, for random rows of `row_bytes` out of a table of `table_bytes`."""

    dtype: str
    table_bytes: int
    row_bytes: int
    seconds: float


@dataclass(frozen=True)
class Product:
    """Operations per second of a product whose narrowest side is `width`: of rows by weights, and of a weights' gradient."""

    dtype: str
    width: int
    forward: float
    gradient: float


@dataclass(frozen=True)
class Machine:
    """One device, measured (`probe`). Seconds are those of this library's own kernels, with all of `threads` at work.

    >>> machine = Machine("cpu", "an example", 2, 32 << 20, 1 << 20, 2e10, (), 1e-5, 2e-5, (), 1.0, (), ())
    >>> Machine.from_dict(machine.as_dict()) == machine
    True
    """

    device: str  # "cpu" or "cuda"
    name: str
    threads: int
    cache_bytes: int  # of the last-level cache, or of a GPU's L2
    near_bytes: int  # of the cache that each processor has to itself, 0 where none is counted
    stream_rate: float  # bytes per second that an element-wise operation reads and writes
    own_rates: tuple[tuple[str, float], ...]  # the same where a row that has a factor of its own is added to another, by type
    call_seconds: float  # what one operation costs however small it is
    sum_seconds: float  # the same of a sum over neighbors
    layer_seconds: tuple[tuple[str, float], ...]  # what a step of one layer costs however small the graph is, by type
    attend_factor: float  # entries of a fused attention cost this many times those of a sum
    reads: tuple[RowRead, ...]
    products: tuple[Product, ...]

    def read_seconds(self, row_bytes: float, *, table_bytes: float, dtype: torch.dtype = torch.float32) -> float:
        """Per entry, for random rows of a table: between what was measured, by the sizes of row and of table."""
        reads = [r for r in self.reads if r.dtype == _kind(dtype)] or list(self.reads)
        tables = sorted({r.table_bytes for r in reads})
        if not tables:
            raise ValueError("this machine has no measured row reads: make it with probe()")
        seconds = []
        for table in tables:
            measured = sorted((r.row_bytes, r.seconds) for r in reads if r.table_bytes == table)
            if len(measured) > 1 and row_bytes < measured[1][0] and measured[0][1] > measured[1][1]:
                seconds.append(measured[0][1])  # rows of less than a vector are slower than one: up to there it is all the same
            else:
                seconds.append(_between([float(b) for b, _ in measured], [s for _, s in measured], row_bytes))
        return _between([log(t) for t in tables], seconds, log(max(table_bytes, 1)), beyond=False)

    def hit_seconds(self, row_bytes: float, *, table_bytes: float, dtype: torch.dtype = torch.float32) -> float:
        """Per entry whose row lies in the cache."""
        cached = max((r.table_bytes for r in self.reads if r.table_bytes <= self.cache_bytes), default=self.cache_bytes)
        return self.read_seconds(row_bytes, table_bytes=min(table_bytes, cached), dtype=dtype)

    def miss_seconds(self, row_bytes: float, *, dtype: torch.dtype = torch.float32) -> float:
        """Per entry whose row comes from memory: of a random one in a large table, less those that were in the cache after all."""
        large = max(r.table_bytes for r in self.reads)
        mixed = self.read_seconds(row_bytes, table_bytes=large, dtype=dtype)
        hit = self.hit_seconds(row_bytes, table_bytes=large, dtype=dtype)
        share = min(self.cache_bytes / large, 0.9)
        return max((mixed - share * hit) / (1 - share), hit)

    def product_rate(self, width: int, *, dtype: torch.dtype = torch.float32, gradient: bool = False) -> float:
        """Operations per second of a product whose narrowest side is `width`."""
        of_type = [p for p in self.products if p.dtype == _kind(dtype)] or self.products
        measured = sorted((log(p.width), p.gradient if gradient else p.forward) for p in of_type)
        if not measured:
            raise ValueError("this machine has no measured products: make it with probe()")
        return _between([w for w, _ in measured], [r for _, r in measured], log(max(width, 1)), beyond=False)

    def step_overhead(self, dtype: torch.dtype = torch.float32) -> float:
        """Seconds of one layer's step on a graph of no size: what Python, autograd and casts take."""
        known = dict(self.layer_seconds)
        return known.get(_kind(dtype), max(known.values(), default=0.0))

    def own_rate(self, dtype: torch.dtype = torch.float32) -> float:
        """Bytes per second that are read and written where each row's own is added to its sum."""
        known = dict(self.own_rates)
        return known.get(_kind(dtype), min(known.values(), default=self.stream_rate))

    def as_dict(self) -> dict[str, Any]:
        """The measurements as JSON writes them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Machine:
        """The machine that `as_dict` wrote."""
        unknown = sorted(set(plain) - {f.name for f in fields(cls)})
        missing = sorted({f.name for f in fields(cls)} - set(plain))
        if unknown or missing:
            raise ValueError(f"this is no measured machine: it lacks {missing} and has {unknown}; measure it again with probe()")
        lists = {
            "reads": tuple(RowRead(**r) for r in plain["reads"]),
            "products": tuple(Product(**p) for p in plain["products"]),
            **{name: tuple((str(kind), float(value)) for kind, value in plain[name]) for name in ("layer_seconds", "own_rates")},
        }
        return cls(**{**plain, **lists})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON. What was there before stays whole until the new file is complete."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(self.as_dict(), indent=1), contended=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Machine:
        """Read what `save` wrote."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text()))
        except (json.JSONDecodeError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"{path} holds no measured machine ({error}): delete it, and it is measured again") from None


def _kind(dtype: torch.dtype) -> str:
    return _KINDS.get(dtype, "float32")


def _between(at: Sequence[float], values: Sequence[float], x: float, *, beyond: bool = True) -> float:
    """Linear between the points; beyond the last one on with its slope, or else as the last; before the first as the first."""
    if x <= at[0] or len(at) == 1:
        return values[0]
    if x >= at[-1] and not beyond:
        return values[-1]
    i = min(bisect_left(at, x), len(at) - 1)
    slope = (values[i] - values[i - 1]) / (at[i] - at[i - 1])
    if x > at[-1]:
        slope = max(slope, 0.0)  # noise in the measured points must not make wider rows cheaper
        return values[-1] + slope * (x - at[-1])
    return values[i - 1] + slope * (x - at[i - 1])
