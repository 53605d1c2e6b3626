"""`LinkSetting`: the graph, the machine and the rows that link prediction is planned for; what fits, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headrace.plan.links.cost import Traffic, batch_rows, disk_traffic, link_traffic, order_loads, row_bytes, state_floats
from headrace.store.disk.files import Layout
from headrace.train.links.memory import ROW_TYPES

HELD_PER_EDGE = 48  # bytes that training keeps in memory for every edge: the triple, its place in the order, and room to sort
SPARE = 2  # slots of a buffer beside its capacity, which partitions are read ahead into and written back from
_FOR_BATCHES = 8  # one part in so many of a memory is for batches in flight


@dataclass(frozen=True)
class LinkSetting:
    """Sizes in bytes, rates in bytes a second; `edge_rate` is edges a second that the device computes, if that is known.

    `reserved` is what main memory must have for other things than rows, edges and batches: to rank the test edges, say.
    """

    nodes: int
    edges: int
    dim: int
    memory: int
    device_memory: int | None
    disk_rate: float
    write_rate: float | None
    link_rate: float
    edge_rate: float | None
    optimizer: str
    row_type: str
    chunks: int
    negatives: int
    reserved: int = 0

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self) if f.name not in ("optimizer", "row_type", "reserved")):
            value = getattr(self, name)
            if value is None and name in ("device_memory", "write_rate", "edge_rate"):
                continue
            if not value > 0 or value == float("inf"):
                raise ValueError(f"{name} must be a positive number, not {value}")
        row_bytes(self.dim, optimizer=self.optimizer, row_type=self.row_type)

    @property
    def row_bytes(self) -> int:
        """A row and its state as they are kept."""
        return row_bytes(self.dim, optimizer=self.optimizer, row_type=self.row_type)

    @property
    def moved_bytes(self) -> int:
        """A row and its state as batches carry them."""
        return row_bytes(self.dim, optimizer=self.optimizer)

    @property
    def table(self) -> int:
        """Bytes of all rows and states."""
        return self.nodes * self.row_bytes

    @property
    def main_room(self) -> int:
        """What main memory has for rows, beside the edges, the batches in flight and what is reserved."""
        return self.room(self.memory) - self.reserved

    def room(self, memory: int) -> int:
        """What a memory has for rows, beside the edges and the batches in flight."""
        return memory - memory // _FOR_BATCHES - HELD_PER_EDGE * self.edges

    def needed(self, table: float) -> int:
        """The main memory whose room holds so many bytes of rows."""
        return int((table + HELD_PER_EDGE * self.edges + self.reserved) * _FOR_BATCHES / (_FOR_BATCHES - 1)) + 1

    def partition_bytes(self, partitions: int) -> int:
        """A partition as a file and in a slot, rounded up to what a disk reads."""
        state = state_floats(self.dim, self.optimizer)
        return Layout.of(self.nodes, self.dim, state, ROW_TYPES[self.row_type], partitions, 4096).file_bytes

    def slots(self, partitions: int, buffer: int) -> int:
        """Bytes of a buffer with its spare slots."""
        return min(buffer + SPARE, partitions) * self.partition_bytes(partitions)

    def batch_bytes(self, batch_size: int) -> int:
        """Memory of a batch in flight: its rows and their updates, its scores and their gradients, for heads and tails."""
        rows = batch_rows(batch_size, chunks=self.chunks, negatives=self.negatives)
        return 2 * rows * self.moved_bytes + 16 * batch_size * self.negatives

    def for_batches(self) -> int:
        """Memory for batches in flight, of the smaller memory where there are two."""
        return min(self.memory, self.device_memory or self.memory) // _FOR_BATCHES

    def disk(self, order: str, partitions: int, buffer: int) -> Traffic:
        """What an epoch reads from disk and writes to it."""
        table = partitions * self.partition_bytes(partitions)
        return disk_traffic(table, self.edges, partitions=partitions, loads=order_loads(order, partitions, buffer))

    def link(self, batch_size: int) -> Traffic:
        """What batches carry to a GPU and back; nothing where there is none."""
        if self.device_memory is None:
            return Traffic(0.0, 0.0)
        return link_traffic(self.edges, self.moved_bytes, batch_size=batch_size, chunks=self.chunks, negatives=self.negatives)

    def seconds(self, *, disk: Traffic | None = None, link: Traffic | None = None, stale: bool = True) -> float:
        """An epoch: disk, link and computation beside one another; link and computation one after the other unless `stale`."""
        moving = 0.0 if link is None else link.seconds(self.link_rate)
        computing = 0.0 if self.edge_rate is None else self.edges / self.edge_rate
        reading = 0.0 if disk is None else disk.seconds(self.disk_rate, self.write_rate)
        return max(reading, max(moving, computing) if stale else moving + computing)
