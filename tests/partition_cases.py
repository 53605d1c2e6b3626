"""What tests of the partitioned store share: the same work on any trained rows."""

from collections.abc import Iterator
from pathlib import Path

import torch

from headrace.pipeline.orders import Order
from headrace.store import Partitioned, TrainedArray, TrainedRows


def updates(number: int, source: range, target: range, width: int, state: int) -> Iterator[torch.Tensor]:
    """Ids of two partitions and what to add to them: a function of the number alone."""
    generator = torch.Generator().manual_seed(number)
    both = torch.cat([torch.arange(r.start, r.stop) for r in {source, target}])
    ids = both[torch.randperm(len(both), generator=generator)[: (len(both) + 1) // 2]]
    yield ids
    yield 0.01 * torch.randn(len(ids), width, generator=generator)
    yield torch.rand(len(ids), state, generator=generator)


def rows_of(partition: int, per_partition: int, num_rows: int) -> range:
    return range(min(partition * per_partition, num_rows), min((partition + 1) * per_partition, num_rows))


def train_in_memory(rows: TrainedArray, order: Order, partitions: int, first: int = 0) -> None:
    """The updates of an epoch, in the order of its buckets; what is added depends on what is there."""
    per = -(-rows.num_rows // partitions)
    number = first
    for group in order.buckets:
        for i, j in group:
            update(rows, number, rows_of(i, per, rows.num_rows), rows_of(j, per, rows.num_rows), rows.state_width)
            number += 1


def train_partitioned(store: Partitioned, order: Order, first: int = 0) -> None:
    number = first
    with store.walk(order) as walk:
        for step in walk:
            for i, j in step.buckets:
                with walk.hold((i, j)):
                    update(store, number, store.rows_of(i), store.rows_of(j), store.state_width)
                number += 1


def update(rows: TrainedRows, number: int, source: range, target: range, state: int) -> None:
    ids, delta_rows, delta_state = updates(number, source, target, rows.width, state)
    before, sums = rows.gather(ids)
    rows.add_(ids, delta_rows - 0.1 * before, delta_state + 0.01 * sums)


def everything(store: Partitioned) -> torch.Tensor:
    return torch.cat([rows for _, rows in store.scan()])


def states_on_disk(path: Path, capacity: int) -> torch.Tensor:
    """All states, read through the buffer of a store that is opened for it."""
    with Partitioned.open(path, capacity=capacity) as store:
        found = []
        states = tuple((p,) for p in range(store.partitions))
        with store.walk(Order(store.partitions, states, tuple(() for _ in states))) as walk:
            for step in walk:
                with walk.hold(step.state):
                    ids = store.rows_of(step.state[0])
                    found.append(store.gather(torch.arange(ids.start, ids.stop))[1])
        return torch.cat(found)
