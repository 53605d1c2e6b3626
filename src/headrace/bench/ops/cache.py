"""Hits and speed of cached rows, by policy, on the ids of sampled batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headrace import _native
from headrace.bench.measure import Row, rate_row, time_in_turn
from headrace.bench.setting import FANOUTS, Setting, features_of
from headrace.sample import NeighborSampler
from headrace.store import ArrayStore, BufferPool, Cached
from headrace.store.cache.cached import POLICIES, Policy

_SHARE = 0.1  # of the rows
_EPOCHS = 3  # over the same seeds, each with its own draws


def run(setting: Setting) -> list[Row]:
    """A tenth of the rows cached. The limit of hits is Belady's rule over the whole trace, that of speed a bare gather."""
    data = setting.dataset()
    x = features_of(data)
    sampler = NeighborSampler(data.graph, FANOUTS[:2], threads=setting.threads)
    batches = [
        sampler.sample(seeds, epoch, j).nodes.long()
        for epoch in range(_EPOCHS)
        for j, seeds in enumerate(setting.seed_batches(data))
    ]
    rows = []
    best = _hit_rate(_cached(x, "planned", batches, setting.threads, lookahead=len(batches)), batches, x)
    for policy in POLICIES:
        setting.progress(f"caching by {policy}")
        rate = _hit_rate(_cached(x, policy, batches, setting.threads), batches, x)
        rows.append(Row(f"{policy}, {_SHARE:.0%} of the rows", "hits of sampled nodes", "share", rate, {}, best))
        rows.append(_speed(x, policy, batches, setting))
    return rows


def _cached(x: Tensor, policy: Policy, batches: list[Tensor], threads: int, *, lookahead: int = 64) -> Cached:
    store = Cached(ArrayStore(x, threads=threads), _SHARE, policy=policy, lookahead=lookahead, threads=threads)
    if policy == "planned":
        store.plan(batches)
    return store


def _hit_rate(store: Cached, batches: list[Tensor], x: Tensor) -> float:
    for ids in batches:
        if not torch.equal(store.gather(ids), x[ids]):
            raise RuntimeError("the gathered rows are wrong: nothing is reported")
    return store.use().hit_rate


def _speed(x: Tensor, policy: Policy, batches: list[Tensor], setting: Setting) -> Row:
    """Rows a second where the wrapped store is memory: what the cache itself costs."""
    store = _cached(x, policy, batches, setting.threads)
    out = BufferPool().empty((max(map(len, batches)), *x.shape[1:]), x.dtype)

    def ours() -> None:
        if policy == "planned":
            store.plan(batches)
        for ids in batches:
            store.gather(ids, out=out[: len(ids)])

    def bare() -> None:
        for ids in batches:
            _native.bare_gather(x, ids, out[: len(ids)], setting.threads)

    def uncached() -> None:
        for ids in batches:
            store.store.gather(ids, out=out[: len(ids)])

    runs: dict[str, Callable[[], object]] = {"ours": ours, "limit": bare, "not cached, in memory": uncached}
    seconds = time_in_turn(runs, repeats=setting.repeats)
    work = dict.fromkeys(runs, sum(map(len, batches)) / 1e6)
    return rate_row(f"{policy}, {setting.threads_named}", "rows through the cache", "M/s", work, seconds)
