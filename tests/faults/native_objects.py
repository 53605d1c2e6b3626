"""Short lives of the native module's objects: samplers, caches and pools, made and called with good and hostile arguments."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hostile import IDS, Draws
from native_calls import step

Attempt = Callable[..., Any]  # attempt(function, **arguments): what it returned, or None if it raised


def sampler(native: Any, d: Draws, attempt: Attempt) -> None:
    nodes = d.size(least=1)
    indptr, indices = d.graph(nodes, nodes)
    edges, timed = len(indices), d.chance(0.3)
    kind = d.pick(("int64", "float64"))
    made = attempt(
        native.Sampler, indptr=indptr, indices=indices, fanouts=[d.pick((-1, 0, 1, 3, 20)) for _ in range(1 + d.below(3))],
        replace=d.chance(0.3), hash=d.chance(0.5), disjoint=timed or d.chance(0.3),
        weight=d.reals(edges) if d.chance(0.3) else None, cumulative=d.sums(edges) if d.chance(0.3) else None,
        time=d.filled(np.sort(d.rng.integers(0, 50, edges)), kind) if timed else None, last=d.chance(0.2), inclusive=d.chance(0.5),
        labor=d.chance(0.2), layer_dependency=d.chance(0.5), batch_dependency=d.pick((1, 4)),
    )  # fmt: skip
    pool = native.Pool.create(1 << 20)
    for batch in range(3 if made else 0):
        seeds = d.ints(d.size(), nodes)
        times = d.filled(d.rng.integers(0, 50, len(seeds)), kind) if timed else None
        attempt(
            made.sample,
            seeds=seeds,
            pool=pool,
            seed=1,
            epoch=0,
            batch=batch,
            positions=d.chance(0.5),
            threads=d.threads(),
            time=times,
        )
    if made:
        attempt(lambda: made.workspace_bytes)


def hetero_sampler(native: Any, d: Draws, attempt: Attempt) -> None:
    nodes = [d.size(least=1), d.size(least=1)]
    ends = [(0, 1), (1, 0), (1, 1)]
    graphs = [d.graph(nodes[target], nodes[source], d.pick(IDS)) for source, target in ends]
    hops = 1 + d.below(2)
    fanouts = [[d.pick((-1, 0, 2, 9)) for _ in range(hops)] for _ in ends]
    made = attempt(
        native.HeteroSampler, num_nodes=nodes, indptr=[g[0] for g in graphs], indices=[g[1] for g in graphs],
        source=[s for s, _ in ends], target=[t for _, t in ends], fanouts=fanouts,
        hops=hops, replace=d.chance(0.3), hash=[d.chance(0.5) for _ in nodes],
    )  # fmt: skip
    pool = native.Pool.create(0)
    for batch in range(2 if made else 0):
        seeds = [d.ints(d.size(), count) for count in nodes]
        attempt(made.sample, seeds=seeds, pool=pool, seed=1, epoch=0, batch=batch, positions=d.chance(0.5), threads=d.threads())


def hops(native: Any, d: Draws, attempt: Attempt) -> None:
    nodes, wide = d.size(least=1), d.chance(0.5)
    made = attempt(native.Hops, num_nodes=nodes, wide=wide, hash=d.chance(0.5))
    pool = native.Pool.create(1 << 20)
    for _ in range(2 if made else 0):
        attempt(made.begin, seeds=d.ints(d.size(), nodes), pool=pool)
        for _ in range(1 + d.below(3)):
            frontier = attempt(made.frontier)
            drawer = d.ints(0 if frontier is None else len(frontier), 3)
            drawn = []
            for rows in np.bincount(drawer, minlength=3):
                counts = d.rng.integers(0, 5, rows)
                drawn.append(d.filled(np.r_[counts, d.rng.integers(0, nodes, counts.sum())], "int64" if wide else "int32"))
            attempt(made.add, drawer=drawer, drawn=drawn, threads=d.threads())
        if d.chance(0.7):
            attempt(made.finish)
    if made:
        attempt(lambda: made.workspace_bytes)


def draw_part(native: Any, d: Draws, attempt: Attempt) -> None:
    owned, nodes, groups = d.size(), d.size(least=1), d.below(4)
    indptr, indices = d.graph(owned, nodes)
    sizes = d.ints(groups, 20 if owned else 1)
    attempt(
        native.draw_part, indptr=indptr, indices=indices, nodes=d.ints(owned, 1 << 30, indices.dtype),
        rows=d.ints(int(sizes.sum()), owned, d.pick(IDS)), sizes=sizes, keys=d.ints(groups, 1 << 40, "uint64"),
        pool=native.Pool.create(d.pick((0, 1 << 20))), fanout=d.pick((-1, 0, 1, 3, 20)), hop=d.below(3),
        replace=d.chance(0.3), threads=d.threads(), num_nodes=nodes,
    )  # fmt: skip


def cache(native: Any, d: Draws, attempt: Attempt) -> None:
    nodes, capacity, planned = 1 + d.below(40), d.below(12), d.chance(0.4)
    if planned:
        made = attempt(native.PlannedCache, nodes=nodes, capacity=capacity, lookahead=1 + d.below(5))
    else:
        policy = d.pick(("sieve", "lru", "clock", "s3fifo"))
        made = attempt(native.OnlineCache, policy=policy, nodes=nodes, capacity=capacity)
    if made is None:
        return
    other = native.OnlineCache("lru", 200, 150)
    strangers = [other.access(np.arange(150))]
    coming: list[Any] = []
    under_way: list[Any] = []
    for _ in range(12):
        ids, what = d.ints(d.below(12), nodes), d.below(8)
        if what == 0 and under_way:
            attempt(made.finish, access=d.pick(under_way), filled=d.chance(0.8))
        elif what == 1:
            attempt(made.find, ids=ids)
        elif what == 2:
            attempt(made.forget, slots=d.ints(d.below(3), max(capacity, 1), "int32"))
        elif what == 3 and planned:
            attempt(d.pick((made.restart, lambda: made.announced)))
            coming = []
        elif what == 4 and d.chance(0.3):
            attempt(made.finish, access=d.pick(strangers), filled=True)
        elif planned and what < 7:
            if attempt(made.announce, ids=ids) is not None or made.announced > len(coming):
                coming.append(ids)
            attempt(made.first_difference, ids=ids)
        else:
            wanted = coming.pop(0) if coming else ids
            access = attempt(made.access, ids=wanted)
            if access is not None:
                under_way.append(access)
                attempt(
                    lambda access=access: (
                        access.source.sum(),
                        access.fetch.sum(),
                        access.fill.sum(),
                        access.evicted.sum(),
                        access.hits,
                    )
                )
    attempt(lambda: made.rows_held)


def _read(access: Any) -> int:
    return sum(int(values.sum()) for values in (access.source, access.fetch, access.fill, access.evicted)) + int(access.hits)


def pool(native: Any, d: Draws, attempt: Attempt) -> None:
    made = attempt(native.Pool.create, limit=d.pick((0, 1000, 1 << 20)))
    held = []
    for _ in range(6 if made else 0):
        memory = attempt(made.empty, bytes=d.pick((0, 1, 63, 1000, 300_000)))
        if memory is not None and memory.nbytes < 1 << 20:
            memory[:] = 1
            held.append(memory)
        if d.chance(0.4):
            held.clear()
        attempt(d.pick((made.stats, made.clear)))


def checksum(native: Any, d: Draws, attempt: Attempt) -> None:
    made = native.Checksum()
    for _ in range(3):
        data = d.ints(d.size(), 256, "uint8")
        attempt(made.update, data=data if d.chance(0.7) else bytes(data))
    attempt(made.digest)


def link_workspace(native: Any, d: Draws, attempt: Attempt) -> None:
    made = native.LinkWorkspace()
    for _ in range(2):
        attempt(made.step, **step(d))


OBJECTS = {f.__name__: f for f in (sampler, hetero_sampler, hops, draw_part, cache, pool, checksum, link_workspace)}
