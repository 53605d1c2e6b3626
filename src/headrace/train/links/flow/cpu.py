"""`CPUFlow`: a CPU computes, on rows in main memory or on disk."""

from __future__ import annotations

import numpy as np

from headrace.pipeline import Stage
from headrace.train.links.flow.batch import FlowBatch
from headrace.train.links.flow.flow import LinkFlow
from headrace.train.links.flow.native_step import NativeStep, StepEdges, has_native_step


class CPUFlow(LinkFlow):
    """Draws ahead; reads, computes and updates in one stage.

    A batch reads its rows when its turn has come and updates them before the next one does, so that none is ever stale. To read
    earlier would only take the same processor's time earlier.
    """

    native: NativeStep | None = None

    def prepare(self) -> None:
        if not self.hides_answers:
            self.native = NativeStep(self.decoder, self.optimizer, self.relation_optimizer, threads=self.options.threads)

    @property
    def hides_answers(self) -> bool:
        """The native step sees by itself which negatives are the answer."""
        return self.encoder is not None or not has_native_step(self.decoder, self.options)

    def stages(self) -> list[Stage]:
        return [Stage("load", self.load), Stage("compute", self.compute)]

    def load(self, batch: FlowBatch) -> FlowBatch:
        """Draw negatives, number the nodes, and sample around them."""
        self.draw(batch)
        if self.encoder is not None:
            self.encoder.sample(batch)
        return batch

    def compute(self, batch: FlowBatch) -> FlowBatch:
        """Read rows and state, compute the step, and update rows, state, relations and encoder."""
        if self.native is not None:
            self._native_step(self.native, batch)
        else:
            if batch.ids is not None:
                self.gather(batch)
            self.step(batch)
            self.add(batch)
        return batch.finish()

    def _native_step(self, native: NativeStep, batch: FlowBatch) -> None:
        assert batch.ids is not None
        assert batch.place is not None
        assert batch.relation is not None
        edges = StepEdges(batch.place, batch.relation, self.relation_state, batch.hidden, batch.chunks, batch.lr)
        table = self.float_rows
        if table is not None:  # stepped where they are, without copies
            loss = native.update_(table.rows, table.state, batch.ids, edges)
            batch.bytes = len(batch.ids) * 4 * (table.width + table.state_width)
        else:
            self.gather(batch)
            assert batch.rows is not None
            assert batch.state is not None
            loss, batch.rows, batch.state = native.deltas(batch.rows, batch.state, edges)
            self.add(batch)
        batch.loss = float(np.float32(loss))  # as a tensor would have it
