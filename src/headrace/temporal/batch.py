"""`EventBatch`: what a model is told of a batch of events."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from headrace.sample import Block
from headrace.temporal.transfer import moved


@dataclass(frozen=True, eq=False)
class EventBatch:
    """Events `begin` to `end`, with their negatives: the roots are sources, destinations and negatives, in this order."""

    index: int
    begin: int
    end: int
    nodes: Tensor  # [u] distinct ids of roots and neighbors
    row_of: Tensor  # [nodes of the sample] place in `nodes`
    blocks: tuple[Block, ...]
    dt: Tensor  # [edges] from a neighbor's event to its root
    edge_id: Tensor  # [edges]
    has_mail: Tensor  # [u]
    mail_event: Tensor  # [u] the event that sent the mail; 0 where there is none
    mail_dt: Tensor  # [u] from the memory's time to the mail's
    age: Tensor  # [roots] since the memory's time
    written: Tensor  # [w] places in `nodes`: whose last event of the group is in this batch
    other: Tensor  # [w] places in `nodes` of whom they met in it
    other_root: Tensor  # [w] the root that this other is

    lanes = 1  # see `JointEvents`

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def event(self) -> slice:
        """Their places in the stream."""
        return slice(self.begin, self.end)

    def to(self, device: str | torch.device) -> EventBatch:
        """The batch on a device. One copy brings all of it, from page-locked memory, and nobody waits for it."""
        chosen = torch.device(device)
        return self if chosen.type == self.nodes.device.type else self.copied(chosen)

    def copied(self, device: torch.device) -> EventBatch:
        """A copy on a device, wherever the batch is now."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {name: value for name, value in named.items() if isinstance(value, Tensor)}
        if self.blocks:
            arrays |= {"indptr": self.blocks[-1].indptr, "indices": self.blocks[-1].indices}
        there: dict[str, Any] = moved(arrays, device)
        if self.blocks:
            indptr, indices = there.pop("indptr"), there.pop("indices")
            there["blocks"] = tuple(
                Block(indptr[: block.num_dst + 1], indices[: block.num_edges], block.num_src) for block in self.blocks
            )
        return replace(self, **there)
