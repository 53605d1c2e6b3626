"""Benchmarks: every row is ours, the peers that are installed, and the machine's limit, from one run."""

from collections.abc import Callable

from headrace.bench import aggregate, cache, gather, loader, sampling, train
from headrace.bench.measure import Row
from headrace.bench.setting import Setting

BENCHES: dict[str, Callable[[Setting], list[Row]]] = {
    "sampling": sampling.run,
    "gather": gather.run,
    "cache": cache.run,
    "aggregate": aggregate.run,
    "loader": loader.run,
    "train": train.run,
}

__all__ = ["BENCHES", "Row", "Setting"]
