"""`Draw`: the edges of a batch, their negatives, and a number for each node that the batch needs."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from headrace.sample import KnownEdges, SharedNegatives, drawn_as
from headrace.train.links.flow.batch import FlowBatch
from headrace.train.links.options import LinkOptions

_FEW = 1 << 20  # pairs that are compared faster than they are searched


class Draw:
    """Draws where `triples` and `known` are: in main memory or on a GPU, with the same result.

    hides: whether to say which negatives are the answer itself; a native step sees that by itself.
    """

    def __init__(
        self,
        triples: Tensor,
        num_nodes: int,
        options: LinkOptions,
        *,
        weight: Tensor | None = None,
        known: KnownEdges | None = None,
        hides: bool = True,
    ) -> None:
        self.triples, self.num_nodes, self.options, self.known = triples, num_nodes, options, known
        self.hides = hides or known is not None
        # Wherever edges are, if a GPU computes: sums over an encoder's nodes depend on their order.
        self.ascending = torch.device(options.device).type == "cuda"
        self.negatives: SharedNegatives | None = None  # where every node is scored, none are drawn
        if options.negatives:
            self.negatives = SharedNegatives(
                num_nodes,
                amount=options.negatives,
                chunks=options.chunks,
                degree_fraction=options.degree_fraction,
                weight=weight,
                seed=options.seed,
                threads=options.threads,
            )

    def __call__(self, batch: FlowBatch) -> None:
        """Give a batch its `relation`, `ids`, `place`, `chunks` and `hidden`."""
        positions = batch.edges.positions
        if self.negatives is None:
            head, relation, tail = self.triples.index_select(0, positions).long().unbind(1)
            batch.relation, batch.place = relation.contiguous(), torch.cat([head, tail])
            return
        batch.chunks = math.gcd(len(positions), self.options.chunks)
        edges = self.negatives.of_edges(
            self.triples,
            positions,
            epoch=batch.epoch,
            batch=batch.edges.index,
            ranges=batch.edges.ranges,
            chunks=batch.chunks,
            ascending=self.ascending,
        )
        batch.relation, batch.ids, batch.place = edges.relation, edges.ids, edges.place
        if self.hides:
            head, tail, drawn = edges.nodes.split([len(positions), len(positions), batch.chunks * self.options.negatives])
            batch.hidden = self._hidden(head, edges.relation, tail, drawn.view(batch.chunks, -1))

    def _hidden(self, head: Tensor, relation: Tensor, tail: Tensor, drawn: Tensor) -> Tensor:
        """Negatives that are the answer itself, or known to be one.  # [b], [b], [b], [k, n] -> [m], of k * (2 b / k) * n"""
        chunks, each = len(drawn), len(head) // len(drawn)
        question = torch.arange(2 * len(head), device=head.device)
        answer = torch.cat([tail.view(chunks, -1), head.view(chunks, -1)], dim=1).flatten()
        if self.known is None and drawn.is_cpu and len(answer) * drawn.shape[1] <= _FEW:
            same = answer.view(chunks, -1, 1).numpy() == drawn.unsqueeze(1).numpy()
            return torch.from_numpy(np.flatnonzero(same))
        if self.known is not None:
            questions, answers = [question], [answer]
            for number, (end, side) in enumerate(((head, "tail"), (tail, "head"))):
                position, node = self.known.answers(end, relation, side=side)  # type: ignore[arg-type]
                questions.append(position // each * 2 * each + position % each + number * each)
                answers.append(node)
            question, answer = torch.cat(questions), torch.cat(answers)
        which, column = drawn_as(drawn, question // (2 * each), answer, num_nodes=self.num_nodes)
        return question[which] * drawn.shape[1] + column
