"""`HostFlow`: a GPU computes, and rows are in main memory or on disk."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.pipeline import Stage
from headrace.sample import KnownEdges
from headrace.train.links.flow.batch import MOVED, FlowBatch
from headrace.train.links.flow.copies import Copies
from headrace.train.links.flow.flow import LinkFlow
from headrace.train.links.memory import edges_fit


class HostFlow(LinkFlow):
    """Reads rows ahead, copies them to the GPU, and copies updates back, each in a stage and on a stream of its own.

    Where the edges fit on the GPU, batches are drawn there (`draws_on_gpu`), and only their ids come to the host.
    """

    draws_on_gpu = False

    def prepare(self) -> None:
        self.copies = Copies(self.device)

    def place_of_edges(self, triples: Tensor, known: KnownEdges | None) -> torch.device:
        """The GPU if it has room for them, else with the rows."""
        self.draws_on_gpu = edges_fit(triples, self.device, known=known is not None)
        return self.device if self.draws_on_gpu else self.rows.device

    def stages(self) -> list[Stage]:
        return [
            Stage("load", self.load),
            Stage("to device", self.to_device),
            Stage("compute", self.compute),
            Stage("from device", self.from_device),
            Stage("update", self.update),
        ]

    def load(self, batch: FlowBatch) -> FlowBatch:
        """Draw negatives, number the nodes, sample around them, and gather their rows."""
        if self.draws_on_gpu:
            with self.copies.ahead():
                self.draw(batch)
                assert batch.ids is not None
                batch.host_ids = batch.ids.cpu()  # waits for all of the above, so that any other stream may read it
        else:
            self.draw(batch)
        if self.encoder is not None:
            self.encoder.sample(batch)
        self.gather(batch)
        return batch

    def to_device(self, batch: FlowBatch) -> FlowBatch:
        """Copy what is not on the GPU."""
        batch.host_ids = batch.ids if batch.host_ids is None else batch.host_ids
        names = [name for name in MOVED if getattr(batch, name) is not None]
        moved, batch.ready = self.copies.put([getattr(batch, name) for name in names])
        for name, tensor in zip(names, moved, strict=True):
            setattr(batch, name, tensor)
        return batch

    def compute(self, batch: FlowBatch) -> FlowBatch:
        """The loss, the relations' update, and what is to be added to rows and state."""
        self.copies.receive([getattr(batch, name) for name in MOVED], batch.ready)
        self.step(batch)
        batch.ready = self.copies.mark()
        return batch

    def from_device(self, batch: FlowBatch) -> FlowBatch:
        """Copy what is to be added to where the rows are."""
        assert batch.rows is not None
        assert batch.state is not None
        batch.rows, batch.state = self.copies.take([batch.rows, batch.state], batch.ready)
        batch.ids = batch.host_ids
        return batch
