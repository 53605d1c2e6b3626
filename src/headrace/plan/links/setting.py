"""`LinkSetting`: the run and the machine that link prediction is planned for; what fits, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from headrace.plan.links.cost import Traffic, disk_traffic, link_traffic, order_loads
from headrace.train.links.memory import BATCHES, SPARE, LinkMemory

_FOR_BATCHES = 8  # one part in so many of a memory is for batches in flight, if rows leave it


@dataclass(frozen=True)
class LinkSetting:
    """Sizes in bytes, rates in bytes a second; `edge_rate` is edges a second that the device computes, if that is known.

    `run` is what is known of the run. Plans replace what they decide; its limit is the main memory that they may use.
    """

    run: LinkMemory
    device_memory: int | None  # None without a GPU
    disk_rate: float
    write_rate: float | None
    link_rate: float
    edge_rate: float | None

    def __post_init__(self) -> None:
        for name, value in self.as_dict().items():
            if value is None or isinstance(value, str):
                continue
            if not value > 0 or value == float("inf"):
                raise ValueError(f"{name} must be a positive number, not {value}")

    def as_dict(self) -> dict[str, Any]:
        """The setting as JSON writes it."""
        run = {"nodes": self.nodes, "edges": self.edges, "dim": self.run.options.dim, "memory": self.memory}
        machine = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "run"}
        options = {name: getattr(self.run.options, name) for name in ("optimizer", "row_type", "chunks", "negatives")}
        return {**run, **machine, **options}

    @property
    def nodes(self) -> int:
        return self.run.nodes

    @property
    def edges(self) -> int:
        """Edges to learn from."""
        return self.run.train

    @property
    def memory(self) -> int:
        """Main memory that the run may use."""
        return self.run.limit

    @property
    def table(self) -> int:
        """Bytes of all rows and states."""
        return self.nodes * self.run.row_bytes

    def fits(self, run: LinkMemory, *, spare: int = SPARE, shares: bool = True) -> bool:
        """Whether a run is within main memory, as training counts it; if it `shares`, with an eighth of it for batches."""
        parts = run.main(spare)
        batches = sum(parts.get(name, 0) for name in BATCHES)
        return sum(parts.values()) - batches + max(batches, self.memory // _FOR_BATCHES if shares else 0) <= self.memory

    def device_needs(self, run: LinkMemory) -> int:
        """Memory of a GPU that holds the rows (on disk: the buffer) and edges of a run, with an eighth of it for batches."""
        return int(sum(run.on_device().values()) * _FOR_BATCHES / (_FOR_BATCHES - 1)) + 1

    def fits_device(self, run: LinkMemory) -> bool:
        """Whether the GPU can hold the rows of a run; not without one."""
        return self.device_memory is not None and self.device_needs(run) <= self.device_memory

    def for_batches(self) -> int:
        """Memory for batches in flight, of the smaller memory where there are two."""
        return min(self.memory, self.device_memory or self.memory) // _FOR_BATCHES

    def disk(self, run: LinkMemory, order: str) -> Traffic:
        """What an epoch reads from disk and writes to it."""
        loads = order_loads(order, run.partitions, run.buffer)
        return disk_traffic(run.partitions * run.partition_bytes, self.edges, partitions=run.partitions, loads=loads)

    def link(self, run: LinkMemory) -> Traffic:
        """What batches carry to a GPU and back; nothing where there is none."""
        if self.device_memory is None:
            return Traffic(0.0, 0.0)
        return link_traffic(self.edges, run.moved_bytes, batch_size=run.batch_size, batch_rows=run.batch_rows)

    def seconds(self, *, disk: Traffic | None = None, link: Traffic | None = None, stale: bool = True) -> float:
        """An epoch: disk, link and computation beside one another; link and computation one after the other unless `stale`."""
        moving = 0.0 if link is None else link.seconds(self.link_rate)
        computing = 0.0 if self.edge_rate is None else self.edges / self.edge_rate
        reading = 0.0 if disk is None else disk.seconds(self.disk_rate, self.write_rate)
        return max(reading, max(moving, computing) if stale else moving + computing)
