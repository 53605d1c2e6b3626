"""`link_plan`: where the rows of link prediction are to live, in which partitions and order, and what an epoch is to take."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headrace._sizes import format_size
from headrace.plan.decided import Choice, Decided, seconds
from headrace.plan.links.asked import LinkAsked, Place, Storage
from headrace.plan.links.choices import MOST_STALE, batch_choice, order_choice, shape_choice, staleness_choice, storage_choice
from headrace.plan.links.cost import Traffic, batch_rows
from headrace.plan.links.setting import LinkSetting
from headrace.plan.links.shapes import shape, shapes

_ROWS_PER_STALE = 100  # of so many rows, one may be in a batch under way


@dataclass(frozen=True)
class LinkPlan(Decided):
    """What `link_plan` decided. `options()` is what `LinkOptions` takes; `str(plan)` a table with predictions and reasons."""

    setting: LinkSetting
    storage: Storage
    partitions: int  # 0 where rows are in one piece
    buffer: int
    buffer_on: Place
    order: str | None
    batch_size: int
    staleness: int
    disk: Traffic  # bytes of an epoch
    link: Traffic
    seconds: float  # of an epoch; without the computation where its rate is not known
    choices: tuple[Choice, ...]

    @property
    def bytes(self) -> float:
        """Read from disk and written to it in an epoch."""
        return self.disk.bytes

    def options(self) -> dict[str, Any]:
        """As `LinkOptions` and the command line have it."""
        setting = self.setting
        found: dict[str, Any] = {"dim": setting.dim, "storage": self.storage}
        if self.order is not None:
            found |= {"partitions": self.partitions, "buffer": self.buffer, "buffer_on": self.buffer_on, "order": self.order}
        found |= {"batch_size": self.batch_size, "staleness": self.staleness}
        found |= {"chunks": setting.chunks, "negatives": setting.negatives}
        found |= {"optimizer": setting.optimizer, "row_type": setting.row_type}
        return found | ({} if setting.device_memory is None else {"device": "cuda"})

    def as_dict(self) -> dict[str, Any]:
        """As JSON writes it."""
        return {**asdict(self), "options": self.options(), "bytes": self.bytes, "table": self.setting.table}

    @property
    def summary(self) -> str:
        setting = self.setting
        known = "" if setting.edge_rate is not None else ", besides what is computed"
        took = f"at least {seconds(self.seconds)}{known}" if self.seconds else "the computation is all there is to wait for"
        return (
            f"{setting.nodes:,} nodes, {setting.edges:,} edges, {setting.dim} floats: rows and state of "
            f"{format_size(setting.table)} ({setting.row_bytes} bytes a node)\n"
            f"predicted for an epoch: {format_size(self.disk.read)} read from disk, {format_size(self.disk.written)} written, "
            f"{format_size(self.link.bytes)} to the GPU and back; {took}"
        )


def link_plan(
    nodes: int,
    edges: int,
    dim: int,
    *,
    memory: int,
    device_memory: int | None = None,
    disk_rate: float = 1e9,
    write_rate: float | None = None,
    link_rate: float = 12e9,
    edge_rate: float | None = None,
    optimizer: str = "row_adagrad",
    row_type: str = "fp32",
    storage: Storage | None = None,
    partitions: int | None = None,
    buffer: int | None = None,
    buffer_on: Place | None = None,
    order: str | None = None,
    batch_size: int | None = None,
    staleness: int | None = None,
    chunks: int = 10,
    negatives: int = 100,
    reserved: int = 0,
) -> LinkPlan:
    """Plan the training of `nodes` rows of `dim` floats on `edges` edges: storage, partitions, buffer, order, batch, staleness.

    Rows live in the first memory that holds them: the GPU's, main memory, the disk. There, the buffer is as large as memory allows.
    The order is COMET, with l = 2 p / c groups, unless another is asked for, or `edge_rate` says that a disk would be waited for.

    memory, device_memory: bytes that training may take; without `device_memory` there is no GPU.
    disk_rate, write_rate: bytes a second, read while as many may be written; `write_rate` is as `disk_rate` unless given.
    link_rate: bytes a second between main memory and a GPU, each way.
    edge_rate: edges a second that are trained where nothing is waited for.
    storage, partitions, buffer, buffer_on, order, batch_size, staleness: kept as they are given, and the rest is planned around
        them; a ValueError says why where that cannot be. With partitions or a buffer and no storage, rows are on disk.
    reserved: bytes of main memory for other things.

    >>> plan = link_plan(86_054_151, 304_727_650, 100, memory=63 << 30, disk_rate=400e6, optimizer="adagrad")
    >>> plan.storage, plan.partitions, plan.buffer, plan.order
    ('disk', 16, 8, 'comet')
    """
    rates = (disk_rate, write_rate, link_rate, edge_rate)
    setting = LinkSetting(nodes, edges, dim, memory, device_memory, *rates, optimizer, row_type, chunks, negatives, reserved)
    asked = LinkAsked(storage, partitions, buffer, buffer_on, order, batch_size, staleness)
    batch = batch_choice(setting, batch_size)
    size, where = int(batch.chosen), _storage(setting, asked)
    if where != "disk":
        return _in_memory(setting, asked, where, batch)
    link = setting.link(size)
    name = order or _order(setting, asked, link)
    shaped = shape(setting, name, asked)
    disk, place = setting.disk(name, *shaped), _buffer_on(setting, asked, shaped)
    if place == "device":
        link = Traffic(disk.written, disk.written)
    resident = setting.nodes * shaped[1] // shaped[0]
    stale = staleness or _staleness(setting, where, size, resident)
    took = setting.seconds(disk=disk, link=link, stale=stale > 1)
    choices = (
        storage_choice(setting, where, asked, size, disk),
        shape_choice(setting, name, asked, shaped, place),
        order_choice(setting, name, asked, *shaped),
        batch,
        staleness_choice(setting, stale, asked, size, rows=resident, link=link, disk=disk),
    )
    return LinkPlan(setting, where, *shaped, place, name, size, stale, disk, link, took, choices)


def _in_memory(setting: LinkSetting, asked: LinkAsked, storage: Storage, batch: Choice) -> LinkPlan:
    """Nothing moves but batches; partitions that were asked for only say which edges come together."""
    if (asked.partitions is None) != (asked.buffer is None):
        raise ValueError(f"storage {storage} with partitions needs both partitions and a buffer: give both, or neither")
    size = int(batch.chosen)
    staleness = asked.staleness or _staleness(setting, storage, size, setting.nodes)
    link = Traffic(0.0, 0.0) if setting.device_memory is not None and storage == "device" else setting.link(size)
    choices = [storage_choice(setting, storage, asked, size, None), batch]
    choices.append(staleness_choice(setting, staleness, asked, size, rows=setting.nodes, link=link, disk=None))
    took = setting.seconds(link=link, stale=staleness > 1)
    shaped = (asked.partitions or 0, asked.buffer or 0)
    order = (asked.order or "comet") if asked.parts else None
    none = Traffic(0.0, 0.0)
    return LinkPlan(setting, storage, *shaped, "host", order, size, staleness, none, link, took, tuple(choices))


def _storage(setting: LinkSetting, asked: LinkAsked) -> Storage:
    fits = {"host": setting.table <= setting.main_room, "disk": True}
    if setting.device_memory is None:
        fits["device"] = fits["host"]  # where there is no GPU, they are one
    else:
        fits["device"] = setting.table <= setting.room(setting.device_memory)
    if asked.storage is not None:
        if not fits[asked.storage]:
            on_gpu = asked.storage == "device" and setting.device_memory is not None
            have = setting.device_memory if on_gpu and setting.device_memory is not None else setting.memory
            raise ValueError(
                f"storage {asked.storage} needs {format_size(setting.needed(setting.table))} and has {format_size(have)}: "
                "leave storage to the plan, or use storage disk, a smaller dim or row_type bf16"
            )
        return asked.storage
    if asked.parts:
        return "disk"
    if setting.device_memory is not None and fits["device"]:
        return "device"
    return "host" if fits["host"] else "disk"


def _buffer_on(setting: LinkSetting, asked: LinkAsked, shaped: tuple[int, int]) -> Place:
    need = setting.slots(*shaped)
    fits = setting.device_memory is not None and need <= setting.room(setting.device_memory)
    if asked.buffer_on == "device" and setting.device_memory is not None and not fits:
        raise ValueError(
            f"buffer_on device needs {format_size(need)} beside edges and batches, and the GPU has "
            f"{format_size(setting.device_memory)}: use buffer_on host or a smaller buffer"
        )
    return asked.buffer_on or ("device" if fits else "host")


def _order(setting: LinkSetting, asked: LinkAsked, link: Traffic) -> str:
    """COMET where it costs nothing, or nobody knows what it costs; else the order with the fewest loads."""
    found = shapes(setting, "comet", asked)
    if setting.edge_rate is None or not found:
        return "comet" if found else "best"
    moved = min((setting.disk("comet", *way) for way in found), key=lambda traffic: traffic.bytes)
    return "comet" if moved.seconds(setting.disk_rate, setting.write_rate) <= setting.seconds(link=link) else "best"


def _staleness(setting: LinkSetting, storage: Storage, batch_size: int, rows: int) -> int:
    """As many batches as hide what moves, and no more than have few of the rows that batches are drawn from between them."""
    if storage == "device" or (storage == "host" and setting.device_memory is None):
        return 1
    memory = setting.for_batches() // setting.batch_bytes(batch_size)
    sparse = rows // (_ROWS_PER_STALE * batch_rows(batch_size, chunks=0, negatives=0))
    return max(1, min(MOST_STALE, memory, sparse))
