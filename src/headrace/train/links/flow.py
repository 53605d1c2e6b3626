"""`LinkFlow`: what happens to a batch of edges, in five stages (Mohoney et al., "Marius", OSDI 2021, section 3).

    load         draw negatives, number the nodes, sample those around them for an encoder, gather their rows and optimizer state
    to device    copy them there
    compute      encoded rows, loss and gradients; relations and the encoder are updated here, one batch after the other
    from device  copy what is to be added to rows and state back
    update       add it

Rows that live on a GPU with the computation are gathered and added to there, and the copies are of ids alone. Where a CPU computes,
rows are gathered and added to in the stage `compute`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.nn import RESCAL, ComplEx, Decoder, DistMult, Dot, shared_softmax_loss
from headrace.nn.link_losses import LOW, Penalty, loss_named, one_vs_all_loss
from headrace.pipeline import Stage
from headrace.sample import KnownEdges, SharedNegatives, drawn_as
from headrace.store import TrainedArray, TrainedRows
from headrace.train.links.batches import EdgeBatch
from headrace.train.links.copies import Copies
from headrace.train.links.encoder import LinkEncoder
from headrace.train.links.memory import edges_fit
from headrace.train.links.native_step import NativeStep, StepEdges, has_native_step
from headrace.train.links.options import LinkOptions
from headrace.train.links.row_optimizer import RowOptimizer


@dataclass
class FlowBatch:
    """A batch on its way. `place` says where in `ids` the heads, the tails and the negatives are, one after the other."""

    edges: EdgeBatch
    epoch: int
    lr: float
    hold: Any = None
    relation: Tensor | None = None  # [b]
    place: Tensor | None = None  # [2 b + chunks * negatives]
    hidden: Tensor | None = None  # which of the [chunks, 2 b / chunks, negatives] are none
    ids: Tensor | None = None  # [u]; None for all nodes
    chunks: int = 1
    indptr: Tensor | None = None  # with an encoder, neighbors of the first of `ids`; those after them are neighbors only
    indices: Tensor | None = None
    hops: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # how many of `ids` and of `indices` each hop found
    degree: Tensor | None = None  # [u], where the encoder asks for it
    rows: Tensor | None = None  # [u, d], and then what is added to them
    state: Tensor | None = None  # [u, s], and then what is added to it
    loss: Tensor | float | None = None
    bytes: int = 0  # of rows and state that were read
    host_ids: Tensor | None = None
    ready: Any = None  # when what was launched for this batch has ended


_FEW = 1 << 20  # pairs that are compared faster than they are searched
_MOVED = ("relation", "place", "hidden", "ids", "indptr", "indices", "degree", "rows", "state")


class LinkFlow:
    """The stages, for one decoder and one table of rows."""

    def __init__(
        self,
        triples: Tensor,
        rows: TrainedRows,
        decoder: Decoder,
        options: LinkOptions,
        *,
        weight: Tensor | None = None,
        known: KnownEdges | None = None,
        encoder: LinkEncoder | None = None,
    ) -> None:
        self.rows, self.decoder, self.options, self.encoder = rows, decoder, options, encoder
        self.device = torch.device(options.device)
        where = getattr(rows, "device", torch.device("cpu"))
        self.there = where.type == "cuda"  # rows are on the GPU: all that leads to them is, too
        self.direct = self.there and isinstance(rows, TrainedArray) and rows.rows.dtype == torch.float32
        self.copies = Copies(self.device) if self.device.type == "cuda" and not self.there else None
        # Rows are on the host and edges fit on the GPU: batches are numbered there, and only their ids come to the host.
        self.ahead = self.copies is not None and edges_fit(triples, self.device, known=known is not None)
        near = self.device if self.ahead else where
        self.triples, self.known = triples.to(near), None if known is None else known.to(near)
        self.one_vs_all = options.negatives == 0
        self.optimizer = RowOptimizer(options.optimizer)
        # Relations are few: each of their floats has a state of its own.
        self.relation_optimizer = RowOptimizer("sgd" if options.optimizer == "sgd" else "adagrad")
        width = self.relation_optimizer.state_width(decoder.relation_width)
        self.relation_state = torch.zeros(len(decoder.relation), width, device=self.device)
        self.step: NativeStep | None = None
        if encoder is None and has_native_step(decoder, options):
            self.step = NativeStep(decoder, self.optimizer, self.relation_optimizer, threads=options.threads)
        # Rows in main memory are stepped where they are, without copies.
        self.in_place = self.step is not None and isinstance(rows, TrainedArray) and rows.rows.dtype == torch.float32
        self.shares = options.loss == "softmax" and type(decoder) in (Dot, DistMult, ComplEx, RESCAL)
        self.loss = loss_named(options.loss, margin=options.margin, temperature=options.temperature)
        power = {"none": 0, "n3": 3, "l1": 1, "l2": 2, "l3": 3}[options.regularizer]
        self.penalty = Penalty(power, options.regularization) if power else None
        self.negatives: SharedNegatives | None = None
        if not self.one_vs_all:
            self.negatives = SharedNegatives(
                rows.num_rows,
                amount=options.negatives,
                chunks=options.chunks,
                degree_fraction=options.degree_fraction,
                weight=weight,
                seed=options.seed,
                threads=options.threads,
            )

    def stages(self) -> list[Stage]:
        """In order, a thread each: a second thread of the first would wait for the first's turn to draw."""
        return [
            Stage("load", self.load),
            Stage("to device", self.to_device),
            Stage("compute", self.compute),
            Stage("from device", self.from_device),
            Stage("update", self.update),
        ]

    def load(self, batch: FlowBatch) -> FlowBatch:
        """Draw negatives, number the nodes, and gather their rows, if those are to be copied."""
        if self.ahead:
            assert self.copies is not None
            with self.copies.ahead():
                self._number(batch)
                assert batch.ids is not None
                batch.host_ids = batch.ids.cpu()  # waits for all of the above, so that any other stream may read it
        else:
            self._number(batch)
        if batch.ids is None:
            return batch
        if self.encoder is not None:
            self.encoder.sample(batch)
        return batch if self.at_home else self._gathered(batch)

    @property
    def at_home(self) -> bool:
        """Whether the processor that computes owns the rows: a batch gathers them when its turn has come and adds to them before
        the next one does, so that none is ever stale. To gather earlier would only take the same processor's time earlier.
        """
        return self.device.type == "cpu" and self.copies is None

    def _gathered(self, batch: FlowBatch) -> FlowBatch:
        assert batch.ids is not None
        if isinstance(self.rows, TrainedArray) and self.direct:  # `gather` looks at ids, for which the host would wait
            batch.rows, batch.state = self.rows.rows[batch.ids], self.rows.state[batch.ids]
        else:
            batch.rows, batch.state = self.rows.gather(batch.ids if batch.host_ids is None else batch.host_ids)
        batch.bytes = batch.rows.nbytes + batch.state.nbytes
        return batch

    def _number(self, batch: FlowBatch) -> None:
        """A batch's edges, its negatives, and a number for each node that it needs."""
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
            ascending=self.device.type == "cuda",  # wherever edges are: sums over an encoder's nodes depend on their order
        )
        batch.relation, batch.ids, batch.place = edges.relation, edges.ids, edges.place
        if self.step is None or self.known is not None:  # the native step sees by itself which negatives are the answer
            head, tail, drawn = edges.nodes.split([len(positions), len(positions), batch.chunks * self.options.negatives])
            batch.hidden = self._hidden(head, edges.relation, tail, drawn.view(batch.chunks, -1))

    def to_device(self, batch: FlowBatch) -> FlowBatch:
        """Copy what is not there."""
        if self.copies is not None:
            batch.host_ids = batch.ids if batch.host_ids is None else batch.host_ids
            names = [name for name in _MOVED if getattr(batch, name) is not None]
            moved, batch.ready = self.copies.put([getattr(batch, name) for name in names])
            for name, tensor in zip(names, moved, strict=True):
                setattr(batch, name, tensor)
        return batch

    def compute(self, batch: FlowBatch) -> FlowBatch:
        """The loss, the relations' update, and what is to be added to rows and state."""
        if self.copies is not None and batch.ready is not None:
            self.copies.receive([getattr(batch, name) for name in _MOVED], batch.ready)
        if self.at_home and batch.ids is not None and not self.in_place:
            self._gathered(batch)
        if self.step is not None:
            self._native_step(self.step, batch)
        else:
            self._autograd_step(batch)
        if self.at_home and not self.in_place:
            self._add(batch)
        if self.copies is not None:
            batch.ready = self.copies.mark()
        return batch

    def _autograd_step(self, batch: FlowBatch) -> None:
        if batch.ids is None:
            assert isinstance(self.rows, TrainedArray)
            rows, state = self.rows.rows.detach().requires_grad_(), self.rows.state
        else:
            assert batch.rows is not None
            assert batch.state is not None
            rows, state = batch.rows.requires_grad_(), batch.state
        relations = [self.decoder.relation] if self.decoder.relation_width else []
        weights = [] if self.encoder is None else self.encoder.weights
        with self._precision():
            loss = self.loss_of(rows if self.encoder is None else self.encoder.encode(rows, batch), batch)
            grad, *others = torch.autograd.grad(loss, [rows, *relations, *weights])
        relation_grad, weight_grad = others[: len(relations)], others[len(relations) :]
        with torch.no_grad():
            for parameter, gradient in zip(relations, relation_grad, strict=True):
                delta, squares = self.relation_optimizer.deltas(gradient, self.relation_state, lr=batch.lr)
                parameter.add_(delta)
                self.relation_state.add_(squares)
            if self.encoder is not None:
                self.encoder.update(weight_grad, lr=batch.lr)
            batch.rows, batch.state = self.optimizer.deltas(grad, state, lr=batch.lr)
        batch.loss = loss.detach()

    def _native_step(self, step: NativeStep, batch: FlowBatch) -> None:
        assert batch.ids is not None
        assert batch.place is not None
        assert batch.relation is not None
        edges = StepEdges(batch.place, batch.relation, self.relation_state, batch.hidden, batch.chunks, batch.lr)
        if self.in_place:
            assert isinstance(self.rows, TrainedArray)
            loss = step.update_(self.rows.rows, self.rows.state, batch.ids, edges)
            batch.bytes = len(batch.ids) * 4 * (self.rows.width + self.rows.state_width)
        else:
            assert batch.rows is not None
            assert batch.state is not None
            loss, batch.rows, batch.state = step.deltas(batch.rows, batch.state, edges)
        batch.loss = float(np.float32(loss))  # as a tensor would have it

    def from_device(self, batch: FlowBatch) -> FlowBatch:
        """Copy deltas to where the rows are."""
        if self.copies is not None and batch.ready is not None:
            assert batch.rows is not None
            assert batch.state is not None
            batch.rows, batch.state = self.copies.take([batch.rows, batch.state], batch.ready)
            batch.ids = batch.host_ids
        return batch

    def update(self, batch: FlowBatch) -> FlowBatch:
        """Add deltas to rows and state; let go of the partitions."""
        try:
            if not self.at_home:
                self._add(batch)
        finally:
            if batch.hold is not None:
                batch.hold.release()
        batch.rows = batch.state = batch.hidden = batch.place = batch.indptr = batch.indices = batch.degree = None
        return batch

    def _add(self, batch: FlowBatch) -> None:
        assert batch.rows is not None
        assert batch.state is not None
        if isinstance(self.rows, TrainedArray) and (batch.ids is None or self.direct):
            for table, delta in ((self.rows.rows, batch.rows), (self.rows.state, batch.state)):
                if batch.ids is None:
                    table.add_(delta)
                else:
                    table.index_add_(0, batch.ids, delta)  # ids are unique: no two threads of the GPU add to one row
        else:
            assert batch.ids is not None
            self.rows.add_(batch.ids, batch.rows, batch.state)
        batch.rows = batch.state = None

    def loss_of(self, rows: Tensor, batch: FlowBatch) -> Tensor:  # [u, d] -> []
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
            loss = self.loss(positive, negative)
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
        which, column = drawn_as(drawn, question // (2 * each), answer, num_nodes=self.rows.num_rows)
        return question[which] * drawn.shape[1] + column

    @contextmanager
    def _precision(self) -> Iterator[None]:
        if self.options.precision == "fp32" or self.device.type == "cpu":
            yield
            return
        before = torch.backends.cuda.matmul.fp32_precision
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        try:
            yield
        finally:
            torch.backends.cuda.matmul.fp32_precision = before
