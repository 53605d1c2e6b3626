"""Rows where a device reads them fastest."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headrace.ranks import Ranks
from headrace.store.array import ArrayStore
from headrace.store.tiers.counts import Budget
from headrace.store.tiers.ipc import device_uuid
from headrace.store.tiers.meeting import PlacementKind
from headrace.store.tiers.tiered import Tiered


def rows_for(
    device: torch.device,
    rows: Tensor,
    *,
    cache: Budget | None = None,
    order: Tensor | Callable[[], Tensor] | None = None,
    ranks: Ranks | None = None,
) -> ArrayStore | Tiered:
    """A store of `rows` whose gathers end on `device`.

    cache: what may lie in the device's memory, in bytes or as a share of the rows. By default all rows, if they fit into half of
        what is free there; otherwise as many as do. The others stay in page-locked memory.
    order: node ids, hottest first, which decides whose rows are cached; or a function that finds them, called if not all are.
    ranks: processes that build it together, each for its GPU. If all rows fit on every GPU, each has a copy. Otherwise hot rows
        are spread over GPUs that read each other's memory, or copied to each where none do, and a machine keeps the rest once.
    """
    sharing = 1 if ranks is None else ranks.all_gather(device_uuid(device)).count(device_uuid(device))  # ranks of this GPU
    room = torch.cuda.mem_get_info(device)[0] // (2 * sharing)
    fits = cache is None and rows.nbytes <= room
    if fits if ranks is None else all(ranks.all_gather(fits)):
        return ArrayStore(rows.to(device))
    by_heat = order() if callable(order) else order
    budget = room if cache is None else cache
    if ranks is None or ranks.size == 1:
        return Tiered(rows, device=device, device_cache=budget, order=by_heat)
    placement: PlacementKind = "clique" if _reads_others(device, ranks) else "replicate"
    return Tiered(rows, device=device, device_cache=budget, order=by_heat, group=ranks, placement=placement)


def _reads_others(device: torch.device, ranks: Ranks) -> bool:
    """Whether GPUs of different ranks read each other's memory, everywhere."""
    others = [gpu for gpu in range(torch.cuda.device_count()) if gpu != device.index]
    reaches = any(torch.cuda.can_device_access_peer(device, other) for other in others)
    return all(ranks.all_gather(reaches))
