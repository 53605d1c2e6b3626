"""`TGN`: temporal graph networks over rows of memory, which the caller reads and writes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headrace.nn.structure import Structure
from headrace.nn.tgn.event_scores import EventScores
from headrace.nn.tgn.forms import FORMS
from headrace.nn.tgn.memory_update import MemoryUpdate
from headrace.nn.tgn.time_attention import Output, Score, TimeAttention
from headrace.nn.tgn.time_encoding import TimeEncoding


class TGN(nn.Module):
    """Rossi et al., "Temporal graph networks for deep learning on dynamic graphs", 2020, and the models it generalises.

    `form` is "tgn" (GRU memory, attention), "jodie" (RNN memory, embedding moved on by time), "dyrep" (RNN memory, attention, mail
    with the other end's embedding) or "tgat" (no memory, two layers of attention). The model sees rows and never a store. A
    batch of events is: `update` the memory of all nodes that it needs by their mail; `embed` the ends of events and negatives;
    `score` pairs of them; and `mail`, which is stored until the nodes are needed again.

    memory, static, edge, time, out: widths of memory rows, static rows (0: none), edge features (0: none), time encoding and
    embeddings. classes: of events, where their class is scored in place of whether they come. age_mean, age_std: of the time since
    a node's memory changed, over the training events, which JODIE's embedding divides by. `score` and `output` choose between the
    attention of DistTGL and that of PyG's TGN: see `TimeAttention`.

    >>> import headrace as hr, torch
    >>> model = hr.nn.TGN(memory=8, time=8, out=8)
    >>> memory = model.update(torch.zeros(5, 8), torch.zeros(5, model.mail_width), torch.zeros(5, dtype=torch.int64))
    >>> block = hr.sample.Block(torch.tensor([0, 2, 3]), torch.tensor([3, 4, 2]), 5)
    >>> z = model.embed(memory, [block], torch.tensor([10, 20, 5]))
    >>> model.score(z[:1], z[1:]).shape
    torch.Size([1])
    """

    def __init__(
        self,
        *,
        form: str = "tgn",
        memory: int = 100,
        static: int = 0,
        edge: int = 0,
        time: int = 100,
        out: int = 100,
        heads: int = 2,
        layers: int | None = None,
        dropout: float = 0.0,
        score: Score = "leaky",
        output: Output = "norm",
        age_mean: float = 0.0,
        age_std: float = 1.0,
        classes: int = 1,
    ) -> None:
        super().__init__()
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, not {form!r}")
        parts = FORMS[form]
        if (memory < 1 and parts.updater is not None) or out < 1 or min(static, edge) < 0:
            raise ValueError(
                f"memory and out must be at least 1, static and edge at least 0, not memory={memory}, out={out}, "
                f"static={static}, edge={edge}"
            )
        if age_std <= 0:
            raise ValueError(f"age_std must be above 0, not {age_std}")
        self.form, self.parts, self.out = form, parts, out
        self.memory_width = 0 if parts.updater is None else memory
        self.mail_width = 0 if parts.updater is None else memory + (out if parts.mail_embeds else memory)
        self.static_width, self.edge_width = static, edge
        self.hops = 0 if parts.embedding == "time" else parts.layers if layers is None else layers
        if parts.embedding == "attention" and self.hops < 1:
            raise ValueError(f"layers must be at least 1 for {form}, not {layers}")
        if parts.embedding == "time" and (layers or out != memory):
            raise ValueError(f"{form} embeds by memory alone: layers must be left out and out be {memory}, not {layers} and {out}")
        self.age_mean, self.age_std = age_mean, age_std

        self.time = TimeEncoding(time)
        width = self.memory_width or static
        self.static_map = nn.Linear(static, width) if static and static != width else None
        self.updater: MemoryUpdate | None = None
        if parts.updater is not None:
            self.updater = MemoryUpdate(memory, self.mail_width, edge, self.time, parts.updater)
        self.layers = nn.ModuleList(
            TimeAttention(
                out if layer else width,
                out,
                time=self.time,
                edge_channels=edge,
                heads=heads,
                dropout=dropout,
                score=score,
                output=output,
            )
            for layer in range(self.hops)
        )
        self.age_weight = nn.Parameter(torch.randn(out)) if parts.embedding == "time" else None
        self.decoder = EventScores(out, classes)

    def update(
        self, memory: Tensor, mail: Tensor, dt: Tensor, edge_x: Tensor | None = None, *, has_mail: Tensor | None = None
    ) -> Tensor:
        """Memory after the mail that waits for it.  # [n, memory], [n, mail], [n], [n, edge] -> [n, memory]

        `dt` is the time from a memory's last change to its mail. Rows for which `has_mail` [n] is false stay as they are; without
        it every row has mail.
        """
        if self.updater is None:
            raise ValueError(f"{self.form} has no memory to update")
        changed: Tensor = self.updater(memory, mail, dt, edge_x, has_mail)
        return changed

    def mail(self, src: Tensor, dst: Tensor, *, z_src: Tensor | None = None, z_dst: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What events leave for the next update of their sources and of their destinations.  # [n, memory] x 2 -> [n, mail] x 2

        `src` and `dst` are updated memory rows of the ends: a mail is [own || other's]. Of DyRep it is [own || other's embedding],
        which `z_src` and `z_dst` give. Mail is stored and so is no part of a gradient.
        """
        if self.updater is None:
            raise ValueError(f"{self.form} has no memory, and no mail for it")
        if self.parts.mail_embeds:
            if z_src is None or z_dst is None:
                raise ValueError(f"mail of {self.form} has embeddings of the other end: pass z_src and z_dst")
            other_src, other_dst = z_src, z_dst
        else:
            other_src, other_dst = src, dst
        return torch.cat([src, other_dst], dim=1).detach(), torch.cat([dst, other_src], dim=1).detach()

    def states(self, memory: Tensor | None, static: Tensor | None = None) -> Tensor:
        """What is known of nodes before they are embedded: memory plus static rows, the latter mapped if of another width."""
        if (memory is None) != (self.memory_width == 0):
            raise ValueError(
                f"{self.form} with memory={self.memory_width} was given {'no' if memory is None else 'rows of'} memory"
            )
        if (static is None) != (self.static_width == 0):
            raise ValueError(
                f"the model was made for static={self.static_width}, but was given {'no' if static is None else 'some'}"
            )
        if static is None:
            assert memory is not None
            return memory
        mapped = static if self.static_map is None else self.static_map(static)
        return mapped if memory is None else memory + mapped

    def embed(
        self,
        memory: Tensor | None,
        blocks: Sequence[Structure],
        dt: Tensor | None = None,
        *,
        edge_x: Tensor | None = None,
        edge_id: Tensor | None = None,
        static: Tensor | None = None,
        row_of: Tensor | None = None,
        age: Tensor | None = None,
    ) -> Tensor:
        """Rows of the roots, which are the first nodes of a sample.  # [nodes, memory] -> [roots, out]

        `blocks` are those of the sample, the roots' hop first, a hop per layer. `dt` [edges] says how long before its target's time
        each event was; `edge_x` its features, a row per edge or, by `edge_id`, of a table. Where nodes stand in the sample more
        than once, `memory` and `static` may have a row per distinct node: `row_of` [nodes of the sample] then names each one's.
        A form without hops takes `age` [roots], the time since the memory of each root changed, and needs no blocks.
        """
        states = self._known(memory, static, blocks)
        if self.age_weight is not None:
            return self._moved_on(states if row_of is None else states[row_of], age)
        if len(blocks) != self.hops:
            raise ValueError(f"{self.form} has {self.hops} layers, a block each, but was given {len(blocks)} blocks")
        if dt is None:
            raise ValueError("attention needs dt, the time differences of the edges")
        for layer, block in zip(self.layers, reversed(blocks), strict=True):
            indices, edges = block.indices, len(block.indices)
            if row_of is None:
                own = states[: block.num_dst]
            else:
                own, indices = states[row_of[: block.num_dst]], row_of[indices]
            ids = None if edge_id is None else edge_id[:edges]
            features = edge_x if edge_x is None or edge_id is not None else edge_x[:edges]
            states = layer(states, own, block.indptr, indices, dt[:edges], edge_x=features, edge_id=ids)
            row_of = None
        return states

    def score(self, z_src: Tensor, z_dst: Tensor) -> Tensor:
        """Logits of events between sources and destinations, or of classes.  # [n, out], [n, (k,) out] -> [n, (k), (classes)]"""
        logits: Tensor = self.decoder(z_src, z_dst)
        return logits

    def _known(self, memory: Tensor | None, static: Tensor | None, blocks: Sequence[Structure]) -> Tensor:
        if self.memory_width or self.static_width:
            return self.states(memory, static)
        if memory is not None or static is not None:
            self.states(memory, static)
        return self.time.weight.new_zeros(blocks[-1].num_src if blocks else 0, 0)  # nodes of which nothing is known

    def _moved_on(self, states: Tensor, age: Tensor | None) -> Tensor:
        """JODIE's projection: (1 + w * age) * memory."""
        if age is None or age.shape != states.shape[:1]:
            raise ValueError(f"{self.form} needs age, one per root: {len(states)}, not {None if age is None else tuple(age.shape)}")
        assert self.age_weight is not None
        scaled = (age.to(states.dtype) - self.age_mean) / self.age_std
        return states * (1 + scaled[:, None] * self.age_weight)
