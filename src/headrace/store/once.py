"""`once_per_machine`: tensors that every rank holds, kept once in each machine's memory."""

from __future__ import annotations

from contextlib import ExitStack

from torch import Tensor

from headrace.ranks import Ranks
from headrace.store.disk.mapped import mapped_place
from headrace.store.shared import SharedRows


def once_per_machine(tensors: dict[str, Tensor], ranks: Ranks, opened: ExitStack) -> dict[str, Tensor]:
    """Copy tensors to memory that the ranks of a machine share until `opened` ends. All ranks pass equal tensors.

    Tensors that are mapped from a file stay as they are: the system keeps one copy of a file's pages for all who map it. The names
    of shared memory are gone when this returns, so a rank that is killed leaves nothing behind.
    """
    wanted = [name for name, tensor in tensors.items() if tensor.numel() and mapped_place(tensor) is None]
    common = set(wanted).intersection(*ranks.all_gather(wanted))  # what one rank has mapped is not shared
    if len(set(ranks.machines)) == ranks.size:  # each machine has one rank: there is nobody to share with
        return dict(tensors)
    shared = {name: opened.enter_context(SharedRows.of_machine(ranks, tensors[name])) for name in sorted(common)}
    return {name: shared[name].rows if name in shared else tensor for name, tensor in tensors.items()}
