"""`link_plan`: where the rows of link prediction are to live, in which partitions and order, and what an epoch is to take."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace._sizes import format_size
from headrace.plan.decided import Choice, Decided, seconds
from headrace.plan.links.asked import EXACT, LinkAsked, Place, Storage
from headrace.plan.links.choices import MOST_IN_FLIGHT, batch_choice, order_choice, shape_choice, staleness_choice, storage_choice
from headrace.plan.links.cost import Traffic
from headrace.plan.links.setting import LinkSetting
from headrace.plan.links.shapes import shape, shapes
from headrace.train import LinkOptions
from headrace.train.links.flow.row_optimizer import RowOptimizer
from headrace.train.links.memory import LinkMemory

DISK_RATE, LINK_RATE = 1e9, 12e9  # bytes a second, where they are not known
_ROWS_IN_FLIGHT = 100  # of so many rows, one may be in a batch in flight


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
        """The decisions by name, as `LinkOptions` and the command line take them."""
        base = self.setting.run.options
        names: dict[str, Any] = {"dim": base.dim, "storage": self.storage}
        if self.order is not None:
            names |= {"partitions": self.partitions, "buffer": self.buffer, "buffer_on": self.buffer_on, "order": self.order}
        names |= {"batch_size": self.batch_size, "staleness": self.staleness}
        names |= {"chunks": base.chunks, "negatives": base.negatives}
        names |= {"optimizer": base.optimizer, "row_type": base.row_type}
        return names | ({} if self.setting.device_memory is None else {"device": "cuda"})

    def as_dict(self) -> dict[str, Any]:
        """This plan as JSON writes it."""
        facts = {"setting": self.setting.as_dict(), "options": self.options(), "bytes": self.bytes, "table": self.setting.table}
        return asdict(self) | facts

    @property
    def summary(self) -> str:
        setting = self.setting
        known = "" if setting.edge_rate is not None else ", besides what is computed"
        took = f"at least {seconds(self.seconds)}{known}" if self.seconds else "the computation is all there is to wait for"
        return (
            f"{setting.nodes:,} nodes, {setting.edges:,} edges, {setting.run.options.dim} floats: rows and state of "
            f"{format_size(setting.table)} ({setting.run.row_bytes} bytes a node)\n"
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
    disk_rate: float = DISK_RATE,
    write_rate: float | None = None,
    link_rate: float = LINK_RATE,
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
) -> LinkPlan:
    """Plan the training of `nodes` rows of `dim` floats on `edges` edges: storage, partitions, buffer, order, batch, staleness.

    Rows live in the first memory that holds them: the GPU's, main memory, the disk. There, the buffer is as large as memory allows.
    What fits is decided by what training itself counts, less what ranks take: a plan of `planned_link` knows those too.
    The order is COMET, with l = 2 p / c groups, unless another is asked for, or `edge_rate` says that a disk would be waited for.

    memory, device_memory: bytes that training may take; without `device_memory` there is no GPU.
    disk_rate, write_rate: bytes a second, read while as many may be written; `write_rate` is as `disk_rate` unless given.
    link_rate: bytes a second between main memory and a GPU, each way.
    edge_rate: edges a second that are trained where nothing is waited for.
    storage, partitions, buffer, buffer_on, order, batch_size, staleness: kept as they are given, and the rest is planned around
        them; a ValueError says why where that cannot be. With partitions or a buffer and no storage, rows are on disk.

    >>> plan = link_plan(86_054_151, 304_727_650, 100, memory=52 << 30, disk_rate=400e6, optimizer="adagrad")
    >>> plan.storage, plan.partitions, plan.buffer, plan.order
    ('disk', 16, 8, 'comet')
    """
    base = LinkOptions(dim=dim, optimizer=optimizer, row_type=row_type, chunks=chunks, negatives=negatives)  # type: ignore[arg-type]
    run = LinkMemory.of(base, nodes=nodes, train=edges, state=RowOptimizer(base.optimizer).state_width(dim))
    run = replace(run, limit=memory, gpu=device_memory is not None)
    asked = LinkAsked(storage, partitions, buffer, buffer_on, order, batch_size, staleness)
    return decide(LinkSetting(run, device_memory, disk_rate, write_rate, link_rate, edge_rate), asked)


def decide(setting: LinkSetting, asked: LinkAsked) -> LinkPlan:
    """The plan for a setting, around what was asked for."""
    batch = batch_choice(setting, asked.batch_size)
    run = replace(setting.run, batch_size=int(batch.chosen), staleness=EXACT if asked.staleness is None else asked.staleness)
    run = replace(run, storage=_storage(setting, run, asked), buffer_on=asked.buffer_on or "host")
    if run.storage != "disk":
        return _in_memory(setting, run, asked, batch)
    link = setting.link(run)
    order = asked.order or _order(setting, run, asked, link)
    run = shape(setting, run, order, asked)
    if asked.buffer_on is None and setting.fits_device(run):
        run = replace(run, buffer_on="device")
    disk = setting.disk(run, order)
    if run.buffer_on == "device":
        link = Traffic(disk.written, disk.written)
    resident = setting.nodes * run.buffer // run.partitions
    if asked.staleness is None:
        run = replace(run, staleness=_staleness(setting, run, resident))
    choices = (
        storage_choice(setting, run, asked, disk),
        shape_choice(setting, run, order, asked),
        order_choice(setting, run, order, asked),
        batch,
        staleness_choice(setting, run, asked, rows=resident, link=link, disk=disk),
    )
    return _plan(setting, run, order, disk=disk, link=link, choices=choices)


def _in_memory(setting: LinkSetting, run: LinkMemory, asked: LinkAsked, batch: Choice) -> LinkPlan:
    """Nothing moves but batches; partitions that were asked for only say which edges come together."""
    if (asked.partitions is None) != (asked.buffer is None):
        raise ValueError(f"storage {run.storage} with partitions needs both partitions and a buffer: give both, or neither")
    run = replace(run, partitions=asked.partitions or 0, buffer=asked.buffer or 0, buffer_on="host")
    if asked.staleness is None:
        run = replace(run, staleness=_staleness(setting, run, setting.nodes))
    link = Traffic(0.0, 0.0) if run.gpu and run.storage == "device" else setting.link(run)
    choices = (
        storage_choice(setting, run, asked, None),
        batch,
        staleness_choice(setting, run, asked, rows=setting.nodes, link=link, disk=None),
    )
    order = (asked.order or "comet") if asked.parts else None
    return _plan(setting, run, order, disk=Traffic(0.0, 0.0), link=link, choices=choices)


def _plan(
    setting: LinkSetting, run: LinkMemory, order: str | None, *, disk: Traffic, link: Traffic, choices: tuple[Choice, ...]
) -> LinkPlan:
    names = ("storage", "partitions", "buffer", "buffer_on", "batch_size", "staleness")
    decided: dict[str, Any] = {name: getattr(run, name) for name in names}
    took = setting.seconds(disk=disk, link=link, stale=run.staleness > EXACT)
    return LinkPlan(setting, **decided, order=order, disk=disk, link=link, seconds=took, choices=choices)


def _storage(setting: LinkSetting, run: LinkMemory, asked: LinkAsked) -> Storage:
    def fits(storage: Storage, *, shares: bool) -> bool:
        tried = replace(run, storage=storage, partitions=asked.partitions or 0, buffer=asked.buffer or 0)
        return setting.fits(tried, shares=shares) and (storage == "host" or not run.gpu or setting.fits_device(tried))

    if asked.storage is None:
        if asked.parts:
            return "disk"
        if run.gpu and fits("device", shares=True):
            return "device"
        return "host" if fits("host", shares=True) else "disk"
    if asked.storage != "disk" and not fits(asked.storage, shares=False):
        raise ValueError(_too_small(setting, replace(run, storage=asked.storage, partitions=0, buffer=0)))
    return asked.storage


def _too_small(setting: LinkSetting, run: LinkMemory) -> str:
    need, have = run.total(), setting.memory
    if run.storage == "device" and setting.device_memory is not None and not setting.fits_device(run):
        need, have = setting.device_needs(run), setting.device_memory
    return (
        f"storage {run.storage} needs {format_size(need)} and has {format_size(have)}: "
        "leave storage to the plan, or use storage disk, a smaller dim or row_type bf16"
    )


def _order(setting: LinkSetting, run: LinkMemory, asked: LinkAsked, link: Traffic) -> str:
    """COMET where it costs nothing, or nobody knows what it costs; else the order with the fewest loads."""
    ways = shapes(setting, run, "comet", asked)
    if setting.edge_rate is None or not ways:
        return "comet" if ways else "best"
    moved = min((setting.disk(way, "comet") for way in ways), key=lambda traffic: traffic.bytes)
    return "comet" if moved.seconds(setting.disk_rate, setting.write_rate) <= setting.seconds(link=link) else "best"


def _staleness(setting: LinkSetting, run: LinkMemory, rows: int) -> int:
    """Enough batches in flight to hide transfers, but so few that they share few of the rows they are drawn from."""
    if run.storage == "device" or (run.storage == "host" and not run.gpu):
        return EXACT
    most = min(MOST_IN_FLIGHT, rows // (_ROWS_IN_FLIGHT * 2 * run.batch_size)) - 1
    for stale in range(most, EXACT, -1):
        tried = replace(run, staleness=stale)
        if tried.batches() <= setting.for_batches() and setting.fits(tried, spare=0, shares=False):
            return stale
    return EXACT
