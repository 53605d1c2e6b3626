"""Rows where a device reads them fastest."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headrace.store.array import ArrayStore
from headrace.store.tiers.counts import Budget
from headrace.store.tiers.tiered import Tiered


def rows_for(
    device: torch.device, rows: Tensor, *, cache: Budget | None = None, order: Tensor | Callable[[], Tensor] | None = None
) -> ArrayStore | Tiered:
    """A store of `rows` whose gathers end on `device`.

    cache: what may lie in the device's memory, in bytes or as a share of the rows. By default all rows, if they fit into half of
        what is free there; otherwise as many as do. The others stay in page-locked memory.
    order: node ids, hottest first, which decides whose rows are cached; or a function that finds them, called if not all are.
    """
    room = torch.cuda.mem_get_info(device)[0] // 2
    if cache is None and rows.nbytes <= room:
        return ArrayStore(rows.to(device))
    return Tiered(rows, device=device, device_cache=room if cache is None else cache, order=order() if callable(order) else order)
