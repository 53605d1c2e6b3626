"""`link_plan`: where the rows of link prediction are to live, in which partitions and order, and what an epoch is to take."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from headrace._sizes import format_size
from headrace.pipeline.orders import ORDERS, fewest_swaps
from headrace.plan.decided import Candidate, Choice, Decided, seconds
from headrace.plan.link_cost import Traffic, batch_rows, order_loads
from headrace.plan.link_setting import SPARE, LinkSetting

_PARTITIONS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_WALKED = ("hilbert", "hilbert_symmetric", "row_major")  # orders whose loads have no formula: they are made to count them
_MOST_WALKED = 32  # partitions, beyond which that takes seconds
_LEAST_PARTITION = 1 << 20  # bytes that are worth a request to a disk
_ROWS_PER_STALE = 100  # of so many rows, one may be in a batch under way
_MOST_STALE = 16
_UPDATES = 100  # an epoch is worth at least so many

Storage = Literal["device", "host", "disk"]


@dataclass(frozen=True)
class LinkPlan(Decided):
    """What `link_plan` decided. `options()` is what `LinkOptions` takes; `str(plan)` a table with predictions and reasons."""

    setting: LinkSetting
    storage: Storage
    partitions: int  # 0 where rows are not on disk
    buffer: int
    buffer_on: Literal["host", "device"]
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
    order: str | None = None,
    batch_size: int | None = None,
    chunks: int = 10,
    negatives: int = 100,
) -> LinkPlan:
    """Plan the training of `nodes` rows of `dim` floats on `edges` edges: storage, partitions, buffer, order, batch, staleness.

    Rows live in the first memory that holds them: the GPU's, main memory, the disk. There, the buffer is as large as memory allows.
    The order is COMET, with l = 2 p / c groups, unless another is asked for, or `edge_rate` says that a disk would be waited for.

    memory, device_memory: bytes that training may take; without `device_memory` there is no GPU.
    disk_rate, write_rate: bytes a second, read while as many may be written; `write_rate` is as `disk_rate` unless given.
    link_rate: bytes a second between main memory and a GPU, each way.
    edge_rate: edges a second that are trained where nothing is waited for.

    >>> plan = link_plan(86_054_151, 304_727_650, 100, memory=63 << 30, disk_rate=400e6, optimizer="adagrad")
    >>> plan.storage, plan.partitions, plan.buffer, plan.order
    ('disk', 16, 8, 'comet')
    """
    rates = (disk_rate, write_rate, link_rate, edge_rate)
    setting = LinkSetting(nodes, edges, dim, memory, device_memory, *rates, optimizer, row_type, chunks, negatives)
    if order is not None and order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    batch = _batch_choice(setting, batch_size)
    size = int(batch.chosen)
    storage = _storage(setting)
    staleness = _staleness(setting, storage, size)
    link, on_device = setting.link(size), device_memory is not None and storage == "device"
    if storage != "disk":
        moved = Traffic(0.0, 0.0) if on_device else link
        kept = (_storage_choice(setting, storage, size, None), batch, _staleness_choice(setting, moved, None, size, staleness))
        took = setting.seconds(link=moved, stale=staleness > 1)
        return LinkPlan(setting, storage, 0, 0, "host", None, size, staleness, Traffic(0.0, 0.0), moved, took, kept)
    name = order or _order(setting, link)
    partitions, buffer = _shape(setting, name)
    disk = setting.disk(name, partitions, buffer)
    buffer_on: Literal["host", "device"] = "host"
    if device_memory is not None and setting.slots(partitions, buffer) <= setting.room(device_memory):
        buffer_on, link = "device", Traffic(disk.written, disk.written)
    took = setting.seconds(disk=disk, link=link, stale=staleness > 1)
    choices = (
        _storage_choice(setting, storage, size, disk),
        _shape_choice(setting, name, partitions, buffer, buffer_on),
        _order_choice(setting, name, partitions, buffer, asked=order is not None),
        batch,
        _staleness_choice(setting, link, disk, size, staleness),
    )
    return LinkPlan(setting, storage, partitions, buffer, buffer_on, name, size, staleness, disk, link, took, choices)


def _storage(setting: LinkSetting) -> Storage:
    if setting.device_memory is not None and setting.table <= setting.room(setting.device_memory):
        return "device"
    return "host" if setting.table <= setting.room(setting.memory) else "disk"


def _storage_choice(setting: LinkSetting, chosen: Storage, batch_size: int, disk: Traffic | None) -> Choice:
    need, link = setting.needed(setting.table), setting.link(batch_size)
    ways = []
    if setting.device_memory is not None:
        ways.append(Candidate("device" if chosen == "device" else "device, too small", 0.0, setting.seconds()))
    fits = setting.table <= setting.room(setting.memory)
    ways.append(Candidate("host" if fits else "host, too small", link.bytes, setting.seconds(link=link)))
    if disk is not None:
        ways.append(Candidate("disk", disk.bytes, setting.seconds(disk=disk)))
    given = [f"main memory has {format_size(setting.memory)}"]
    if setting.device_memory is not None:
        given.insert(0, f"the GPU has {format_size(setting.device_memory)}")
    reason = f"rows, state, edges and batches need {format_size(need)}; {', '.join(given)}"
    why = {
        "device": ": they fit beside the computation",
        "host": ": they fit there",
        "disk": f". The disk needs room for every row twice, {format_size(2 * setting.table)}",
    }
    return Choice("storage", chosen, tuple(ways), reason + why[chosen])


def _shapes(setting: LinkSetting, order: str) -> list[tuple[int, int]]:
    """The largest buffer that memory holds, of every number of partitions that it makes sense for."""
    found = []
    most = min(max(16, setting.table // _LEAST_PARTITION), setting.nodes, _MOST_WALKED if order in _WALKED else _PARTITIONS[-1])
    for partitions in (p for p in _PARTITIONS if p <= most):
        for buffer in range(partitions - 1, 1, -1):
            fits = setting.slots(partitions, buffer) <= setting.room(setting.memory)
            if fits and (order != "comet" or _grouped(partitions, buffer)):
                found.append((partitions, buffer))
                break
    return found


def _grouped(partitions: int, buffer: int) -> bool:
    """Whether COMET can halve the buffer: l = 2 p / c groups of whole partitions."""
    return buffer % 2 == 0 and 2 * partitions % buffer == 0 and partitions % (2 * partitions // buffer) == 0


def _shape(setting: LinkSetting, order: str) -> tuple[int, int]:
    """Partitions and buffer with the fewest bytes, and of those the fewest partitions."""
    shapes = _shapes(setting, order)
    if not shapes:
        least = setting.needed(setting.slots(_MOST_WALKED if order in _WALKED else _PARTITIONS[-1], 2))
        raise ValueError(
            f"memory={format_size(setting.memory)} is too small for {setting.nodes:,} rows of {setting.row_bytes} bytes and "
            f"{setting.edges:,} edges, even on disk: give at least {format_size(least)}, or a smaller dim, or row_type bf16"
        )
    return min(shapes, key=lambda shape: (setting.disk(order, *shape).bytes, shape[0]))


def _shape_choice(setting: LinkSetting, order: str, partitions: int, buffer: int, buffer_on: str) -> Choice:
    ways = []
    for shape in _shapes(setting, order):
        moved = setting.disk(order, *shape)
        ways.append(Candidate(f"{shape[1]} of {shape[0]} partitions", moved.bytes, setting.seconds(disk=moved)))
    place = "the GPU's memory" if buffer_on == "device" else "main memory"
    size = format_size(setting.slots(partitions, buffer))
    reason = (
        f"{buffer} of {partitions} resident and {SPARE} more to read ahead take {size} of {place}, each partition "
        f"{format_size(setting.table / partitions)}: the fewest bytes, in as few partitions as that takes"
    )
    return Choice("partitions and buffer", f"{buffer} of {partitions} partitions", tuple(ways), reason)


def _order(setting: LinkSetting, link: Traffic) -> str:
    """COMET where it costs nothing, or nobody knows what it costs; else the order with the fewest loads."""
    if setting.edge_rate is None or not (shapes := _shapes(setting, "comet")):
        return "comet" if _shapes(setting, "comet") else "best"
    moved = min((setting.disk("comet", *shape) for shape in shapes), key=lambda traffic: traffic.bytes)
    return "comet" if moved.seconds(setting.disk_rate, setting.write_rate) <= setting.seconds(link=link) else "best"


def _order_choice(setting: LinkSetting, chosen: str, partitions: int, buffer: int, *, asked: bool) -> Choice:
    ways = []
    for name in ORDERS:
        if (name == "comet" and not _grouped(partitions, buffer)) or (name in _WALKED and partitions > _MOST_WALKED):
            continue
        moved = setting.disk(name, partitions, buffer)
        ways.append(Candidate(name, moved.bytes, setting.seconds(disk=moved)))
    loads = f"{order_loads(chosen, partitions, buffer)} loads an epoch, at least {fewest_swaps(partitions, buffer)} in any order"
    if asked:
        return Choice("order", chosen, tuple(ways), f"as asked: {loads}")
    if chosen == "comet":
        groups = 2 * partitions // buffer
        why = f"{loads}; {groups} random groups, and buckets in random states, mix edges more than orders of fewer loads do"
    else:
        why = f"{loads}; the computation would wait for the disk, so the fewest loads are the fastest"
    return Choice("order", chosen, tuple(ways), why)


def _batch_choice(setting: LinkSetting, asked: int | None) -> Choice:
    """Large enough to keep a device busy, small enough for many updates an epoch and for memory."""
    if asked is not None:
        size, reason = asked, "as asked"
    else:
        usual = 10_000 if setting.device_memory is not None else 1_000
        size = min(usual, max(setting.edges // _UPDATES, 100))
        while size > 100 and setting.batch_bytes(size) > setting.for_batches():
            size //= 2
        room = format_size(setting.for_batches())
        reason = f"at most {usual:,} edges, at least {_UPDATES} updates an epoch, and no more than {room} for batches in flight"
    ways = []
    others = {max(size // 10, 1), size * 10} if setting.device_memory is not None else set()  # without a GPU they move nothing
    for edges in sorted({size} | others):
        moved = setting.link(edges)
        ways.append(Candidate(str(edges), moved.bytes, setting.seconds(link=moved)))
    return Choice("batch size", str(size), tuple(ways), reason)


def _staleness(setting: LinkSetting, storage: Storage, batch_size: int) -> int:
    if storage == "device" or (storage == "host" and setting.device_memory is None):
        return 1
    memory = setting.for_batches() // setting.batch_bytes(batch_size)
    rows = setting.nodes // (_ROWS_PER_STALE * batch_rows(batch_size, chunks=0, negatives=0))
    return max(1, min(_MOST_STALE, memory, rows))


def _staleness_choice(setting: LinkSetting, link: Traffic, disk: Traffic | None, batch_size: int, chosen: int) -> Choice:
    ways = []
    for stale in sorted({1, 4, _MOST_STALE, chosen}):
        took = setting.seconds(link=link, disk=disk, stale=stale > 1)
        ways.append(Candidate(str(stale), float(stale * setting.batch_bytes(batch_size)), took))
    if chosen == 1:
        reason = "rows are with the computation, or too few for batches that miss one another's updates: 1 is exact"
    else:
        share = chosen * 2 * batch_size / setting.nodes
        reason = f"moving and computing overlap; up to {share:.2%} of the rows are in flight (bytes are of batches in memory)"
    return Choice("staleness", str(chosen), tuple(ways), reason)
