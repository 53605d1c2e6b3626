"""`Forward`: a TGN as the training of events calls it, with the static rows of its nodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace.nn import TGN
from headrace.temporal import Events


class Forward(nn.Module):
    """A TGN with the static rows of its nodes: given ones, or a table that is learnt in memory's place.

    `keeps`: whether given rows are saved with the weights, as those are that no dataset has. `drops`: the share of nodes that have
    zeros in a batch of training, as those have later that training has not seen.
    """

    def __init__(
        self, tgn: TGN, static: Tensor | None, learned: nn.Embedding | None = None, *, keeps: bool = False, drops: float = 0.0
    ) -> None:
        super().__init__()
        self.tgn, self.learned, self.drops = tgn, learned, drops
        self.register_buffer("static", static, persistent=keeps)

    def rows_of(self, nodes: Tensor) -> Tensor | None:
        if self.learned is not None:  # by index on a GPU: that gradient waits for nothing, and has its bits twice
            table: Tensor = self.learned.weight
            found: Tensor = table[nodes] if table.is_cuda else self.learned(nodes)
            return found
        if self.static is None:
            return None
        rows: Tensor = self.static[nodes]  # type: ignore[index]
        if self.training and self.drops:
            rows = rows * (torch.rand(len(nodes), 1, device=rows.device) >= self.drops)
        return rows

    def update(self, rows: Tensor | None, batch: Events, edge_x: Tensor | None) -> Tensor | None:
        """Memory of the batch's nodes after their mail."""
        if rows is None:
            return None
        memory, mail = rows.split([self.tgn.memory_width, self.tgn.mail_width], dim=1)
        features = None if edge_x is None else edge_x[batch.mail_event]
        return self.tgn.update(memory, mail, batch.mail_dt, features, has_mail=batch.has_mail)

    def letters(self, memory: Tensor, batch: Events, z: Tensor | None) -> Tensor:
        """What is written for `batch.written`: memory, then mail.  # -> [w, memory + mail]"""
        own, other = memory[batch.written], memory[batch.other]
        embeds = None if z is None else z[batch.other_root]
        mail, _ = self.tgn.mail(own, other, z_src=embeds, z_dst=embeds)
        return torch.cat([own.detach(), mail], dim=1)

    def embed(self, memory: Tensor | None, batch: Events, edge_x: Tensor | None) -> Tensor:
        roots = batch.blocks[0].num_dst if batch.blocks else len(batch.age)
        if not self.tgn.hops:
            return self.tgn.embed(memory, (), static=self.rows_of(batch.nodes), row_of=batch.row_of[:roots], age=batch.age)
        return self.tgn.embed(
            memory,
            batch.blocks,
            batch.dt,
            edge_x=edge_x,
            edge_id=None if edge_x is None else batch.edge_id,
            static=self.rows_of(batch.nodes),
            row_of=batch.row_of,
        )

    def scores(self, z: Tensor, events: Events) -> Tensor:
        """Logits of events and their negatives.  # [roots, out] -> [events, 1 + negatives]"""
        source, others = ends_of(z, events)
        return self.tgn.score(source, others)


def ends_of(z: Tensor, events: Events) -> tuple[Tensor, Tensor]:
    """Rows of the sources, and of whom each is paired with.  # [roots, out] -> [events, out], [events, 1 + negatives, out]"""
    by_end = z.view(events.lanes, -1, events.size, z.shape[1])
    return by_end[:, 0].flatten(0, 1), by_end[:, 1:].transpose(1, 2).flatten(0, 1)
