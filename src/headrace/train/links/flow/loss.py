"""`LinkLoss`: the loss of a batch's questions, and the penalty on its rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.nn import Decoder, shared_softmax_loss
from headrace.nn.links.link_losses import LOW, Penalty, loss_named, one_vs_all_loss
from headrace.train.links.flow.batch import FlowBatch
from headrace.train.links.options import LinkOptions

_POWERS = {"none": 0, "n3": 3, "l1": 1, "l2": 2, "l3": 3}


class LinkLoss:
    """What the options minimize, for one decoder."""

    def __init__(self, decoder: Decoder, options: LinkOptions) -> None:
        self.decoder, self.options = decoder, options
        self.shares = options.loss == "softmax" and decoder.by_product
        self._of_scores = loss_named(options.loss, margin=options.margin, temperature=options.temperature)
        power = _POWERS[options.regularizer]
        self.penalty = Penalty(power, options.regularization) if power else None

    def __call__(self, rows: Tensor, batch: FlowBatch) -> Tensor:  # [u, d] -> []
        """The mean loss of a batch's questions, two an edge, and the penalty."""
        assert batch.relation is not None
        assert batch.place is not None
        decoder, relation, size = self.decoder, batch.relation, len(batch.relation)
        picked = F.embedding(batch.place, rows)  # its gradient sums in a fixed order on a GPU too
        head, tail, others = picked.split([size, size, len(picked) - 2 * size])
        chunks, dim = batch.chunks, rows.shape[1]
        shape = (chunks, size // chunks, dim)
        query = torch.cat([question.view(shape) for question in decoder.queries(head, relation, tail)], dim=1)
        if batch.ids is None:
            scores = decoder.score(query, rows[None])[0]
            loss = one_vs_all_loss(scores, torch.cat([batch.place[size:], batch.place[:size]]))
        elif self.shares:
            answer = torch.cat([tail.view(shape), head.view(shape)], dim=1)
            loss = shared_softmax_loss(query, answer, others.view(chunks, -1, dim), hidden=batch.hidden)
        else:
            positive = decoder.compare(query, torch.cat([tail.view(shape), head.view(shape)], dim=1))
            negative = decoder.score(query, others.view(chunks, -1, dim))
            if batch.hidden is not None:  # where scores are that low no loss has a gradient, so none is kept for the fill
                negative.detach().view(-1).index_fill_(0, batch.hidden, LOW)
            loss = self._of_scores(positive, negative)
        return loss if self.penalty is None else loss + self._penalty_of(head, relation, tail)

    def _penalty_of(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        assert self.penalty is not None
        decoder = self.decoder
        sides = [decoder.parameters_of(relation)]
        if decoder.reciprocal:
            sides.append(decoder.parameters_of(relation, side="head"))
        parameters = torch.cat(sides)
        if self.options.regularizer == "n3":
            return self.penalty([decoder.moduli(head), decoder.moduli(tail), decoder.relation_moduli(parameters)])
        sized = parameters if decoder.relation_moduli(parameters).shape[-1] else parameters[..., :0]
        return self.penalty([head.abs(), tail.abs(), sized.abs()])
