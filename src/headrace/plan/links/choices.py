"""The choices of a plan for link prediction as tables: what was weighed, and why one was taken."""

from __future__ import annotations

from dataclasses import replace

from headrace._sizes import format_size
from headrace.pipeline.orders import ORDERS, fewest_swaps
from headrace.plan.decided import Candidate, Choice
from headrace.plan.links.asked import EXACT, LinkAsked
from headrace.plan.links.cost import Traffic, order_loads
from headrace.plan.links.setting import LinkSetting
from headrace.plan.links.shapes import MOST_WALKED, WALKED, grouped, shapes
from headrace.train.links.memory import LinkMemory, fitting_slots

MOST_IN_FLIGHT = 16
_UPDATES = 100  # an epoch is worth at least so many
_LEAST_BATCH = 100  # edges


def storage_choice(setting: LinkSetting, run: LinkMemory, asked: LinkAsked, disk: Traffic | None) -> Choice:
    """The GPU's memory, main memory or the disk."""
    link, in_memory = setting.link(run), replace(run, storage="host", partitions=0, buffer=0)
    ways = []
    if setting.device_memory is not None or run.storage == "device":
        ways.append(Candidate("device" if run.storage == "device" else "device, too small", 0.0, setting.seconds()))
    fits = setting.fits(in_memory)
    ways.append(Candidate("host" if fits or run.storage == "host" else "host, too small", link.bytes, setting.seconds(link=link)))
    if disk is not None:
        ways.append(Candidate("disk", disk.bytes, setting.seconds(disk=disk)))
    memories = [f"main memory has {format_size(setting.memory)}"]
    if setting.device_memory is not None:
        memories.insert(0, f"the GPU has {format_size(setting.device_memory)}")
    reason = f"rows, state, edges and batches in memory need {format_size(in_memory.total())}; {', '.join(memories)}"
    if asked.storage is not None or (run.storage == "disk" and asked.parts):
        reason = f"as {'partitions were ' if asked.storage is None else ''}asked: {reason}"
    why = {
        "device": ": they fit beside the computation",
        "host": ": they fit there",
        "disk": f". The disk needs room for every row twice, {format_size(2 * setting.table)}",
    }
    return Choice("storage", run.storage, tuple(ways), reason + why[run.storage])


def shape_choice(setting: LinkSetting, run: LinkMemory, order: str, asked: LinkAsked) -> Choice:
    """Partitions and how many of them are resident."""
    ways = []
    for way in shapes(setting, run, order, asked):
        moved = setting.disk(way, order)
        ways.append(Candidate(_shape_name(way), moved.bytes, setting.seconds(disk=moved)))
    place, spare = "the GPU's memory" if run.buffer_on == "device" else "main memory", fitting_slots(run)
    reason = (
        f"{run.buffer} of {run.partitions} resident and {spare} more to read ahead take {format_size(run.slots(spare))} of "
        f"{place}, each partition {format_size(run.partition_bytes)}: "
    ) + ("as asked" if asked.parts else "the fewest bytes, in as few partitions as that takes")
    return Choice("partitions and buffer", _shape_name(run), tuple(ways), reason)


def _shape_name(run: LinkMemory) -> str:
    return f"{run.buffer} of {run.partitions} partitions"


def order_choice(setting: LinkSetting, run: LinkMemory, chosen: str, asked: LinkAsked) -> Choice:
    """In which partitions come together."""
    partitions, buffer = run.partitions, run.buffer
    ways = []
    for name in ORDERS:
        if (name == "comet" and not grouped(partitions, buffer)) or (name in WALKED and partitions > MOST_WALKED):
            continue
        moved = setting.disk(run, name)
        ways.append(Candidate(name, moved.bytes, setting.seconds(disk=moved)))
    loads = f"{order_loads(chosen, partitions, buffer)} loads an epoch, at least {fewest_swaps(partitions, buffer)} in any order"
    if asked.order is not None:
        return Choice("order", chosen, tuple(ways), f"as asked: {loads}")
    if chosen == "comet":
        groups = 2 * partitions // buffer
        why = f"{loads}; {groups} random groups, and buckets in random states, mix edges more than orders of fewer loads do"
    elif not grouped(partitions, buffer):
        why = f"{loads}; partitions and buffer have no groups for comet"
    else:
        why = f"{loads}; the computation would wait for the disk, so the fewest loads are the fastest"
    return Choice("order", chosen, tuple(ways), why)


def batch_choice(setting: LinkSetting, asked: int | None) -> Choice:
    """Large enough to keep a device busy, small enough for many updates an epoch and for memory."""
    if asked is not None:
        size, reason = asked, "as asked"
    else:
        usual = 10_000 if setting.device_memory is not None else 1_000
        size = min(usual, max(setting.edges // _UPDATES, _LEAST_BATCH))
        while size > _LEAST_BATCH and replace(setting.run, batch_size=size, staleness=EXACT).batches() > setting.for_batches():
            size //= 2
        room = format_size(setting.for_batches())
        reason = f"at most {usual:,} edges, at least {_UPDATES} updates an epoch, and no more than {room} for batches in flight"
    ways = []
    others = {max(size // 10, 1), size * 10} if setting.device_memory is not None else set()  # without a GPU they move nothing
    for edges in sorted({size} | others):
        moved = setting.link(replace(setting.run, batch_size=edges))
        ways.append(Candidate(str(edges), moved.bytes, setting.seconds(link=moved)))
    return Choice("batch size", str(size), tuple(ways), reason)


def staleness_choice(
    setting: LinkSetting, run: LinkMemory, asked: LinkAsked, *, rows: int, link: Traffic, disk: Traffic | None
) -> Choice:
    """Batches in flight, whose ends are among so many rows."""
    chosen, ways = run.staleness, []
    for stale in sorted({EXACT, 3, MOST_IN_FLIGHT - 1, chosen}):
        took = setting.seconds(link=link, disk=disk, stale=stale > EXACT)
        ways.append(Candidate(str(stale), float(replace(run, staleness=stale).batches()), took))
    if asked.staleness is not None:
        reason = "as asked"
    elif chosen == EXACT:
        reason = f"rows are with the computation, or too few for batches that miss one another's updates: {EXACT} is exact"
    else:
        share, which = run.in_flight * 2 * run.batch_size / rows, "rows" if rows == setting.nodes else "resident rows"
        reason = f"moving and computing overlap; up to {share:.2%} of the {which} are in flight (bytes are of batches in memory)"
    return Choice("staleness", str(chosen), tuple(ways), reason)
