"""`DeviceFlow`: a GPU computes, and rows (or the buffer of those on disk) are in its memory, as are edges."""

from __future__ import annotations

from headrace.pipeline import Stage
from headrace.train.links.flow.batch import FlowBatch
from headrace.train.links.flow.flow import LinkFlow


class DeviceFlow(LinkFlow):
    """Draws and reads ahead on the GPU; nothing is copied."""

    def stages(self) -> list[Stage]:
        return [Stage("load", self.load), Stage("compute", self.compute), Stage("update", self.update)]

    def load(self, batch: FlowBatch) -> FlowBatch:
        """Draw negatives, number the nodes, sample around them, and gather their rows."""
        self.draw(batch)
        if batch.ids is not None:
            if self.encoder is not None:
                self.encoder.sample(batch)
            self.gather(batch)
        return batch

    def gather(self, batch: FlowBatch) -> None:
        """As the rows do; where they are one tensor, without a look at ids, for which the host would wait."""
        table = self.float_rows
        if table is None:
            super().gather(batch)
        else:
            assert batch.ids is not None
            batch.take(table.rows[batch.ids], table.state[batch.ids])

    def compute(self, batch: FlowBatch) -> FlowBatch:
        """The loss, the relations' update, and what is to be added to rows and state."""
        self.step(batch)
        return batch

    def add(self, batch: FlowBatch) -> None:
        table = self.float_rows
        if table is None or batch.ids is None:
            super().add(batch)
            return
        assert batch.rows is not None
        assert batch.state is not None
        table.rows.index_add_(0, batch.ids, batch.rows)  # ids are unique: no two threads of the GPU add to one row
        table.state.index_add_(0, batch.ids, batch.state)
        batch.rows = batch.state = None
