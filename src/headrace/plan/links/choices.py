"""The choices of a plan for link prediction as tables: what was weighed, and why one was taken."""

from __future__ import annotations

from headrace._sizes import format_size
from headrace.pipeline.orders import ORDERS, fewest_swaps
from headrace.plan.decided import Candidate, Choice
from headrace.plan.links.asked import LinkAsked, Storage
from headrace.plan.links.cost import Traffic, order_loads
from headrace.plan.links.setting import SPARE, LinkSetting
from headrace.plan.links.shapes import MOST_WALKED, WALKED, grouped, shapes

MOST_STALE = 16
_UPDATES = 100  # an epoch is worth at least so many


def storage_choice(setting: LinkSetting, chosen: Storage, asked: LinkAsked, batch_size: int, disk: Traffic | None) -> Choice:
    """The GPU's memory, main memory or the disk."""
    need, link = setting.needed(setting.table) - setting.reserved, setting.link(batch_size)
    ways = []
    if setting.device_memory is not None or chosen == "device":
        ways.append(Candidate("device" if chosen == "device" else "device, too small", 0.0, setting.seconds()))
    fits = setting.table <= setting.main_room
    ways.append(Candidate("host" if fits else "host, too small", link.bytes, setting.seconds(link=link)))
    if disk is not None:
        ways.append(Candidate("disk", disk.bytes, setting.seconds(disk=disk)))
    given = [f"main memory has {format_size(setting.memory)}"]
    if setting.device_memory is not None:
        given.insert(0, f"the GPU has {format_size(setting.device_memory)}")
    more = f", besides {format_size(setting.reserved)} for other things" if setting.reserved else ""
    reason = f"rows, state, edges and batches need {format_size(need)}{more}; {', '.join(given)}"
    if asked.storage is not None or (chosen == "disk" and asked.parts):
        reason = f"as {'partitions were ' if asked.storage is None else ''}asked: {reason}"
    why = {
        "device": ": they fit beside the computation",
        "host": ": they fit there",
        "disk": f". The disk needs room for every row twice, {format_size(2 * setting.table)}",
    }
    return Choice("storage", chosen, tuple(ways), reason + why[chosen])


def shape_choice(setting: LinkSetting, order: str, asked: LinkAsked, shape: tuple[int, int], buffer_on: str) -> Choice:
    """Partitions and how many of them are resident."""
    partitions, buffer = shape
    ways = []
    for way in shapes(setting, order, asked):
        moved = setting.disk(order, *way)
        ways.append(Candidate(f"{way[1]} of {way[0]} partitions", moved.bytes, setting.seconds(disk=moved)))
    place = "the GPU's memory" if buffer_on == "device" else "main memory"
    size = format_size(setting.slots(partitions, buffer))
    reason = (
        f"{buffer} of {partitions} resident and {SPARE} more to read ahead take {size} of {place}, each partition "
        f"{format_size(setting.partition_bytes(partitions))}: "
    ) + ("as asked" if asked.parts else "the fewest bytes, in as few partitions as that takes")
    return Choice("partitions and buffer", f"{buffer} of {partitions} partitions", tuple(ways), reason)


def order_choice(setting: LinkSetting, chosen: str, asked: LinkAsked, partitions: int, buffer: int) -> Choice:
    """In which partitions come together."""
    ways = []
    for name in ORDERS:
        if (name == "comet" and not grouped(partitions, buffer)) or (name in WALKED and partitions > MOST_WALKED):
            continue
        moved = setting.disk(name, partitions, buffer)
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


def staleness_choice(
    setting: LinkSetting, chosen: int, asked: LinkAsked, batch_size: int, *, rows: int, link: Traffic, disk: Traffic | None
) -> Choice:
    """Batches in flight, whose ends are among so many rows."""
    ways = []
    for stale in sorted({1, 4, MOST_STALE, chosen}):
        took = setting.seconds(link=link, disk=disk, stale=stale > 1)
        ways.append(Candidate(str(stale), float(stale * setting.batch_bytes(batch_size)), took))
    if asked.staleness is not None:
        reason = "as asked"
    elif chosen == 1:
        reason = "rows are with the computation, or too few for batches that miss one another's updates: 1 is exact"
    else:
        share, which = chosen * 2 * batch_size / rows, "rows" if rows == setting.nodes else "resident rows"
        reason = f"moving and computing overlap; up to {share:.2%} of the {which} are in flight (bytes are of batches in memory)"
    return Choice("staleness", str(chosen), tuple(ways), reason)
