"""`LinkFlow`: what happens to a batch of edges, in stages (Mohoney et al., "Marius", OSDI 2021, section 3).

    load         draw negatives, number the nodes, sample those around them for an encoder, gather their rows and optimizer state
    to device    copy them to the GPU
    compute      encoded rows, loss and gradients; relations and the encoder are updated here, one batch after the other
    from device  copy what is to be added to rows and state back
    update       add it

Each place where rows can be has the stages that do something there:

    CPUFlow      a CPU computes: load, compute
    DeviceFlow   a GPU computes, and rows are in its memory: load, compute, update
    HostFlow     a GPU computes, and rows are in main memory: all five
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.nn import Decoder
from headrace.pipeline import Stage
from headrace.sample import KnownEdges
from headrace.store import TrainedArray, TrainedRows
from headrace.train.links.flow.batch import FlowBatch
from headrace.train.links.flow.draw import Draw
from headrace.train.links.flow.loss import LinkLoss
from headrace.train.links.flow.row_optimizer import RowOptimizer
from headrace.train.links.options import LinkOptions

if TYPE_CHECKING:
    from headrace.train.links.encoder import LinkEncoder


class LinkFlow:
    """What the flows of all places share: how a step is computed, and how rows are read and updated."""

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
        """A flow of batches of `triples`, the training edges.

        weight: how likely each node is drawn as a negative; alike by default.
        known: edges that are left out of the negatives.
        """
        self.rows, self.decoder, self.options, self.encoder = rows, decoder, options, encoder
        self.device = torch.device(options.device)
        self.optimizer = RowOptimizer(options.optimizer)
        # Relations are few: each of their floats has a state of its own.
        self.relation_optimizer = RowOptimizer("sgd" if options.optimizer == "sgd" else "adagrad")
        width = self.relation_optimizer.state_width(decoder.relation_width)
        self.relation_state = torch.zeros(len(decoder.relation), width, device=self.device)
        self.loss = LinkLoss(decoder, options)
        place = self.place_of_edges(triples, known)
        known = None if known is None else known.to(place)
        self.draw = Draw(triples.to(place), rows.num_rows, options, weight=weight, known=known, hides=self.hides_answers)
        self.prepare()

    @property
    def triples(self) -> Tensor:
        """The training edges, where batches are drawn from them."""
        return self.draw.triples

    @property
    def float_rows(self) -> TrainedArray | None:
        """The rows, if all of them are float32 in one tensor, which may then be read and written without `gather` and `add_`."""
        return self.rows if isinstance(self.rows, TrainedArray) and self.rows.rows.dtype == torch.float32 else None

    @property
    def hides_answers(self) -> bool:
        """Whether a step must be told which negatives are the answer itself."""
        return True

    def place_of_edges(self, triples: Tensor, known: KnownEdges | None) -> torch.device:
        """Where batches are drawn: with the rows."""
        return self.rows.device

    def prepare(self) -> None:
        """Set up what a place needs of its own; called last by the constructor."""

    def stages(self) -> list[Stage]:
        """In order, a thread each: a second thread of the first would wait for the first's turn to draw."""
        raise NotImplementedError

    def gather(self, batch: FlowBatch) -> None:
        """Read the rows and states of a batch's nodes."""
        assert batch.ids is not None
        batch.take(*self.rows.gather(batch.ids if batch.host_ids is None else batch.host_ids))

    def step(self, batch: FlowBatch) -> None:
        """The loss, by autograd; updates of relations and encoder; what is to be added to rows and state."""
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
            loss = self.loss(rows if self.encoder is None else self.encoder.encode(rows, batch), batch)
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

    def add(self, batch: FlowBatch) -> None:
        """Add what a step made to rows and state."""
        assert batch.rows is not None
        assert batch.state is not None
        if batch.ids is None:
            assert isinstance(self.rows, TrainedArray)
            self.rows.rows.add_(batch.rows)
            self.rows.state.add_(batch.state)
        else:
            self.rows.add_(batch.ids, batch.rows, batch.state)
        batch.rows = batch.state = None

    def update(self, batch: FlowBatch) -> FlowBatch:
        """Add to rows and state; let go of the partitions, whatever happens."""
        try:
            self.add(batch)
        finally:
            batch.finish()
        return batch

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
