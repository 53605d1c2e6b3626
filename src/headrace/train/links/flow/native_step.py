"""`NativeStep`: loss, gradients and updates of a batch in one native call, for decoders that compare by products, on the CPU.

The same bits as a loop of `Decoder.queries`, `shared_softmax_loss`, autograd and `RowOptimizer`, without what those keep and pass
through memory: relations that a batch does not have are not visited, as a gradient of zero changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_count
from headrace.nn import Decoder
from headrace.train.links.flow.row_optimizer import RowOptimizer
from headrace.train.links.options import LinkOptions


def has_native_step(decoder: Decoder, options: LinkOptions) -> bool:
    """Whether batches of these options can be stepped natively: the softmax loss of products, without a penalty, on the CPU."""
    if decoder.native_step is None or torch.device(options.device).type != "cpu":
        return False
    return options.loss == "softmax" and options.negatives > 0 and options.regularizer == "none"


@dataclass(frozen=True)
class StepEdges:
    """Edges of a batch: `place` says which row the heads, the tails and the negatives are, one after the other.

    Negatives that are the answer never count; `hidden` are more that do not, as `shared_softmax_loss` has them.
    """

    place: Tensor  # [2 b + chunks * n]
    relation: Tensor  # [b]
    relation_state: Tensor  # [R, w], updated
    hidden: Tensor | None
    chunks: int
    lr: float


class NativeStep:
    """Steps of one decoder, with memory that one leaves to the next."""

    def __init__(self, decoder: Decoder, optimizer: RowOptimizer, relation_optimizer: RowOptimizer, *, threads: int | None) -> None:
        self.decoder, self.optimizer, self.relation_optimizer = decoder, optimizer, relation_optimizer
        self.threads = thread_count(threads)
        self._workspace = _native.LinkWorkspace()

    def deltas(self, rows: Tensor, state: Tensor, edges: StepEdges) -> tuple[float, Tensor, Tensor]:  # [u, d], [u, s] -> likewise
        """The loss, and what is to be added to the gathered rows and state; relations are updated."""
        delta, delta_state = torch.empty_like(rows), torch.empty_like(state)
        return self._step(rows, state, None, edges, delta, delta_state), delta, delta_state

    def update_(self, rows: Tensor, state: Tensor, ids: Tensor, edges: StepEdges) -> float:  # [N, d], [N, s], [u]
        """The loss; rows and state of `ids` are updated where they are, and relations too."""
        return self._step(rows, state, ids, edges, None, None)

    def _step(
        self, rows: Tensor, state: Tensor, ids: Tensor | None, edges: StepEdges, delta: Tensor | None, delta_state: Tensor | None
    ) -> float:
        assert self.decoder.native_step is not None
        return self._workspace.step(
            self.decoder.native_step,
            rows=rows.detach().numpy(),  # a tensor itself takes three times as long to pass
            state=state.numpy(),
            ids=None if ids is None else ids.numpy(),
            place=edges.place.numpy(),
            relation=edges.relation.numpy(),
            parameters=self.decoder.relation.detach().numpy(),
            parameter_state=edges.relation_state.numpy(),
            hidden=edges.hidden,
            delta=delta,
            delta_state=delta_state,
            chunks=edges.chunks,
            reciprocal=self.decoder.reciprocal,
            optimizer=self.optimizer.name,
            relation_optimizer=self.relation_optimizer.name,
            lr=edges.lr,
            eps=self.optimizer.eps,
            threads=self.threads,
        )
