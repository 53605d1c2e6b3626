"""Orders in which partitions of a graph visit a buffer: pure functions of the number of partitions p and the buffer's capacity c.

Edges between two partitions are a bucket, and a bucket is trained while both of its partitions are resident, so an order must bring
every pair together, with as few loads as it can. A load brings at most c - 1 pairs that were not together before.

    `beta`                      Mohoney et al., "Marius", OSDI 2021, section 4.1
    `comet`                     Waleffe et al., "MariusGNN", EuroSys 2023, section 5
    `hilbert`, `row_major`      curves over the grid of buckets, each load evicting what is needed last
    `best`                      the shortest that was searched for (`order_search`), else BETA
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

Bucket = tuple[int, int]  # partitions of the sources and of the targets
State = tuple[int, ...]  # which partition is in each slot of the buffer
Swap = tuple[int, int]  # the partition that leaves, the one that takes its slot


@dataclass(frozen=True)
class Order:
    """The states of a buffer one after the other, and the buckets that are trained in each."""

    partitions: int
    states: tuple[State, ...]
    buckets: tuple[tuple[Bucket, ...], ...]

    @property
    def capacity(self) -> int:
        return len(self.states[0])

    @property
    def swaps(self) -> int:
        """Partitions loaded after the first fill."""
        return sum(len(set(after) - set(before)) for before, after in zip(self.states, self.states[1:], strict=False))

    def relabeled(self, names: Sequence[int]) -> Order:
        """The same order with partition `names[i]` in the place of i."""
        if sorted(names) != list(range(self.partitions)):
            raise ValueError(f"names must be a permutation of 0 to {self.partitions - 1}")
        states = tuple(tuple(names[i] for i in state) for state in self.states)
        return Order(self.partitions, states, tuple(tuple((names[i], names[j]) for i, j in group) for group in self.buckets))

    def starting_with(self, resident: Sequence[int], seed: int) -> Order:
        """The same order under random names, whose first state is what is resident, slot by slot: nothing is loaded to begin."""
        if len(set(resident)) != self.capacity or not set(resident) <= set(range(self.partitions)):
            raise ValueError(f"resident must be {self.capacity} different partitions of {self.partitions}, not {list(resident)}")
        others = sorted(set(range(self.partitions)) - set(resident))
        random.Random(seed).shuffle(others)
        names = [0] * self.partitions
        for old, new in zip(self.states[0], resident, strict=True):
            names[old] = new
        for old in range(self.partitions):
            if old not in self.states[0]:
                names[old] = others.pop()
        return self.relabeled(names)


def beta(partitions: int, capacity: int) -> Order:
    """All but one slot are held while every other partition passes through the last; then they are done and replaced.

    >>> beta(16, 8).swaps, beta(32, 8).swaps
    (17, 78)
    """
    _check(partitions, capacity)
    buffer, disk = list(range(capacity)), list(range(capacity, partitions))
    states = [tuple(buffer)]
    while disk:
        for i in range(len(disk)):
            buffer[-1], disk[i] = disk[i], buffer[-1]
            states.append(tuple(buffer))
        done = min(capacity - 1, len(disk))
        for i in range(done):
            buffer[i] = disk[i]
            states.append(tuple(buffer))
        disk = disk[done:]
    return _as_soon_as_possible(partitions, states)


def comet(partitions: int, capacity: int, logical: int | None = None, seed: int = 0) -> Order:
    """BETA over random groups of partitions, and every bucket in any one of the states that hold both of its partitions.

    Trained as soon as possible, buckets of one partition come in long runs, which costs graph networks accuracy. `logical` is the
    number of groups: 2 p / c by default, two groups in the buffer.
    """
    _check(partitions, capacity)
    groups = (max(2 * partitions // capacity, 1) if logical is None else logical) if capacity < partitions else 1
    if groups < 1 or partitions % groups or (capacity * groups) % partitions:
        raise ValueError(
            f"logical={groups} must divide the {partitions} partitions so that whole groups fill the buffer of {capacity}: "
            "use a capacity that is a multiple of partitions / logical"
        )
    size, drawn = partitions // groups, random.Random(seed)
    names = list(range(partitions))
    drawn.shuffle(names)
    coarse = beta(groups, capacity // size) if groups > 1 else None
    member = [names[g * size : (g + 1) * size] for g in range(groups)]
    states = [tuple(p for g in state for p in member[g]) for state in coarse.states] if coarse else [tuple(names)]
    homes: dict[Bucket, list[int]] = {}
    for number, state in enumerate(states):
        for i in state:
            for j in state:
                homes.setdefault((i, j), []).append(number)
    buckets: list[list[Bucket]] = [[] for _ in states]
    for bucket in sorted(homes):
        buckets[drawn.choice(homes[bucket])].append(bucket)
    for group in buckets:
        drawn.shuffle(group)
    return Order(partitions, tuple(states), tuple(map(tuple, buckets)))


def hilbert(partitions: int, capacity: int) -> Order:
    """Along a Hilbert curve over the grid of buckets."""
    return _along(_hilbert_cells(partitions), partitions, capacity)


def hilbert_symmetric(partitions: int, capacity: int) -> Order:
    """Along a Hilbert curve, a bucket and its mirror image together."""
    cells = ((i, j) for i, j in _hilbert_cells(partitions) if i <= j)
    return _along((b for i, j in cells for b in ([(i, j), (j, i)] if i != j else [(i, i)])), partitions, capacity)


def row_major(partitions: int, capacity: int) -> Order:
    """Row by row of the grid."""
    return _along(((i, j) for i in range(partitions) for j in range(partitions)), partitions, capacity)


def best(partitions: int, capacity: int) -> Order:
    """The shortest order known for this size: found by search and kept with the package, or else BETA.

    >>> best(16, 8).swaps, best(16, 4).swaps
    (16, 38)
    """
    swaps = searched(partitions, capacity)
    return beta(partitions, capacity) if swaps is None else from_swaps(partitions, capacity, swaps)


ORDERS = {
    "beta": beta,
    "comet": comet,
    "hilbert": hilbert,
    "hilbert_symmetric": hilbert_symmetric,
    "row_major": row_major,
    "best": best,
}


def from_swaps(partitions: int, capacity: int, swaps: Iterable[Swap]) -> Order:
    """The order that begins with partitions 0 to c - 1 and makes these swaps."""
    buffer = list(range(capacity))
    states = [tuple(buffer)]
    for leaves, enters in swaps:
        if leaves not in buffer or enters in buffer:
            raise ValueError(f"swap {leaves} for {enters}: the buffer holds {buffer}")
        buffer[buffer.index(leaves)] = enters
        states.append(tuple(buffer))
    return _as_soon_as_possible(partitions, states)


def fewest_swaps(partitions: int, capacity: int) -> int:
    """A lower bound for any order: a load brings at most c - 1 new pairs."""
    _check(partitions, capacity)
    pairs = partitions * (partitions - 1) - capacity * (capacity - 1)
    return -(-pairs // (2 * (capacity - 1)))


def beta_swaps(partitions: int, capacity: int) -> int:
    """The loads of BETA by the paper's formula."""
    _check(partitions, capacity)
    rest = partitions - capacity
    rounds = rest // (capacity - 1)
    return rest + ((rounds + 1) * (2 * rest - rounds * (capacity - 1))) // 2


def best_swaps(partitions: int, capacity: int) -> int:
    """The loads of `best`, without making it."""
    swaps = searched(partitions, capacity)
    return beta_swaps(partitions, capacity) if swaps is None else len(swaps)


def replay(order: Order) -> int:
    """Go through an order as a buffer would: its swaps, or a ValueError that says what is wrong with it.

    Every bucket must be trained exactly once, in a state that holds both of its partitions.
    """
    seen: set[Bucket] = set()
    if not order.states or len(order.states) != len(order.buckets):
        raise ValueError(f"{len(order.states)} states for {len(order.buckets)} groups of buckets")
    for number, (state, buckets) in enumerate(zip(order.states, order.buckets, strict=True)):
        if len(set(state)) != order.capacity or not set(state) <= set(range(order.partitions)):
            raise ValueError(f"state {number} is {state}: it must hold {order.capacity} different partitions of {order.partitions}")
        for bucket in buckets:
            if not set(bucket) <= set(state):
                raise ValueError(f"bucket {bucket} is trained in state {number}, which holds {state}")
            if bucket in seen:
                raise ValueError(f"bucket {bucket} is trained twice, the second time in state {number}")
            seen.add(bucket)
    if len(seen) != order.partitions**2:
        raise ValueError(f"{len(seen)} of {order.partitions**2} buckets are trained")
    return order.swaps


def searched(partitions: int, capacity: int) -> list[Swap] | None:
    """The swaps that a search found, if it found any."""
    _check(partitions, capacity)
    table = json.loads(files("headrace.pipeline").joinpath("orders.json").read_text())
    swaps = table.get(f"{partitions},{capacity}")
    return None if swaps is None else [(a, b) for a, b in swaps]


def _check(partitions: int, capacity: int) -> None:
    if partitions < 1:
        raise ValueError(f"partitions must be at least 1, not {partitions}")
    if not min(2, partitions) <= capacity <= partitions:
        raise ValueError(
            f"capacity must be from {min(2, partitions)} to the {partitions} partitions, not {capacity}: "
            "a bucket needs both of its partitions"
        )


def _as_soon_as_possible(partitions: int, states: Sequence[State]) -> Order:
    """Every bucket in the first state that holds both of its partitions."""
    seen: set[Bucket] = set()
    buckets = []
    for state in states:
        group = [(i, j) for i in state for j in state if (i, j) not in seen]
        seen.update(group)
        buckets.append(tuple(group))
    return Order(partitions, tuple(states), tuple(buckets))


def _along(cells: Iterable[Bucket], partitions: int, capacity: int) -> Order:
    """Buckets in a given order; what is loaded takes the slot of the partition that is needed last."""
    _check(partitions, capacity)
    path = list(cells)
    uses: list[list[int]] = [[] for _ in range(partitions)]
    for at in range(len(path) - 1, -1, -1):
        for p in set(path[at]):
            uses[p].append(at)
    buffer: list[int] = []
    for p in (p for bucket in path for p in bucket):
        if p not in buffer and len(buffer) < capacity:
            buffer.append(p)
    states: list[State] = [tuple(buffer)]
    buckets: list[list[Bucket]] = [[]]
    for bucket in path:
        for p in bucket:
            if p not in buffer:
                away = max((q for q in buffer if q not in bucket), key=lambda q: uses[q][-1] if uses[q] else len(path))
                buffer[buffer.index(away)] = p
        if states[-1] != tuple(buffer):
            states.append(tuple(buffer))
            buckets.append([])
        buckets[-1].append(bucket)
        for p in set(bucket):
            uses[p].pop()
    return Order(partitions, tuple(states), tuple(map(tuple, buckets)))


def _hilbert_cells(partitions: int) -> Iterator[Bucket]:
    """Cells of the grid along the curve over the next power of two."""
    side = 1 << max(partitions - 1, 0).bit_length()
    for at in range(side * side):
        x = y = 0
        rest, size = at, 1
        while size < side:
            right, up = 1 & (rest // 2), 1 & (rest ^ (rest // 2))
            if not up:
                if right:
                    x, y = size - 1 - x, size - 1 - y
                x, y = y, x
            x, y = x + size * right, y + size * up
            rest //= 4
            size *= 2
        if x < partitions and y < partitions:
            yield x, y
