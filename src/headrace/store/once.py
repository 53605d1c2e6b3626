"""`once_per_machine`: tensors that every rank holds, kept once in each machine's memory."""

from __future__ import annotations

from contextlib import ExitStack

from torch import Tensor

from headrace.ranks import Ranks, together
from headrace.store.disk.mapped import mapped_place
from headrace.store.shared import SharedRows


def once_per_machine(tensors: dict[str, Tensor], ranks: Ranks, opened: ExitStack) -> dict[str, Tensor]:
    """The same tensors, in memory that the ranks of a machine share until `opened` ends. All ranks call it with equal tensors.

    Tensors that are mapped from a file stay as they are: the system keeps one copy of a file's pages for all who map it. The names
    of shared memory are gone when this returns, so a rank that is killed leaves nothing behind.
    """
    local = [rank for rank in range(ranks.size) if ranks.machines[rank] == ranks.machines[ranks.rank]]
    wanted = {name: tensor for name, tensor in tensors.items() if tensor.numel() and mapped_place(tensor) is None}
    common = set(wanted).intersection(*ranks.all_gather(sorted(wanted)))  # what one rank has mapped is not shared
    if len(local) == 1:
        common = set()
    shared: dict[str, SharedRows] = {}

    def create() -> dict[str, str]:
        if ranks.rank == local[0]:
            for name in sorted(common):
                shared[name] = opened.enter_context(SharedRows.create(wanted[name]))
        return {name: rows.name for name, rows in shared.items()}

    def open_others() -> None:
        for name, where in names[local[0]].items():
            if name not in shared:
                shared[name] = opened.enter_context(SharedRows.open(where))

    names = together(ranks, create)
    together(ranks, open_others)
    for rows in shared.values():
        rows.unlink()
    return {name: shared[name].rows if name in shared else tensor for name, tensor in tensors.items()}
