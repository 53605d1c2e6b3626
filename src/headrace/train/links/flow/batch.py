"""`FlowBatch`: a batch of edges on its way through the stages, with all that they add to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headrace.train.links.batches import EdgeBatch

MOVED = ("relation", "place", "hidden", "ids", "indptr", "indices", "degree", "rows", "state")
"""Fields that a computation on a GPU reads."""


@dataclass
class FlowBatch:
    """A batch on its way. `place` says where in `ids` the heads, the tails and the negatives are, one after the other."""

    edges: EdgeBatch
    epoch: int
    lr: float
    hold: Any = None  # on the partitions that it needs, where rows are on disk
    relation: Tensor | None = None  # [b]
    place: Tensor | None = None  # [2 b + chunks * negatives]
    hidden: Tensor | None = None  # negatives that do not count, as positions in [chunks, 2 b / chunks, negatives]
    ids: Tensor | None = None  # [u]; None for all nodes
    chunks: int = 1
    indptr: Tensor | None = None  # with an encoder, neighbors of the first of `ids`; those after them are neighbors only
    indices: Tensor | None = None
    hops: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # how many of `ids` and of `indices` each hop sampled
    degree: Tensor | None = None  # [u], where the encoder asks for it
    rows: Tensor | None = None  # [u, d], and then what is added to them
    state: Tensor | None = None  # [u, s], and then what is added to it
    loss: Tensor | float | None = None
    bytes: int = 0  # of rows and state that were read
    host_ids: Tensor | None = None  # `ids` in main memory, where the batch itself is on a GPU
    ready: Any = None  # when what was launched for this batch has ended

    def take(self, rows: Tensor, state: Tensor) -> None:  # [u, d], [u, s]
        """Rows and states of its nodes have been read."""
        self.rows, self.state, self.bytes = rows, state, rows.nbytes + state.nbytes

    def finish(self) -> FlowBatch:
        """Its rows are updated: let go of the partitions and of all tensors that no counting needs."""
        if self.hold is not None:
            self.hold.release()
        self.rows = self.state = self.hidden = self.place = self.indptr = self.indices = self.degree = None
        return self
