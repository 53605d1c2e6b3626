"""`LinkEncoder`: a graph neural network between the rows of nodes and the decoder (Waleffe et al., "MariusGNN", EuroSys 2023).

A node's own row and those of sampled neighbors become its encoded row, which is what the decoder scores. Gradients reach all rows
of the sample, which are updated as without an encoder; the network's weights are few, and updated where gradients are computed, one
batch after the other. Edges between the two ends of an edge that the batch asks about are hidden from the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headrace.nn import GNN
from headrace.sample import Block, Sample
from headrace.train.links.flow.row_optimizer import RowOptimizer
from headrace.train.links.neighborhoods import Neighborhoods
from headrace.train.links.options import LinkOptions

if TYPE_CHECKING:
    from headrace.train.links.flow import FlowBatch


@dataclass(frozen=True)
class _Input:
    """What a `GNN` asks of a batch."""

    blocks: tuple[Block, ...]
    x: Tensor
    n_id: Tensor
    degree: Tensor
    table: None = None


class LinkEncoder:
    """The network, its optimizer's state, and the neighbors that it is given."""

    def __init__(self, triples: Tensor, num_nodes: int, options: LinkOptions) -> None:
        self.options, self.model = options, make_encoder(options)
        self.weights = list(self.model.parameters())
        self.optimizer = RowOptimizer("sgd" if options.optimizer == "sgd" else "adagrad")
        # A weight is one row to the optimizer, which gives each of its floats a state of its own.
        widths = [self.optimizer.state_width(weight.numel()) for weight in self.weights]
        self.state = [torch.zeros(1, width, device=options.device) for width in widths]
        self.neighborhoods = Neighborhoods(triples, num_nodes, options)

    @property
    def wants_degree(self) -> bool:
        """Whether layers ask how many neighbors a node has."""
        return self.options.encoder == "gcn"

    def sample(self, batch: FlowBatch) -> None:
        """Put those around a batch's nodes behind them."""
        assert batch.ids is not None
        targets = batch.ids if batch.host_ids is None else batch.host_ids
        ids, sample = self.neighborhoods.sample(targets, batch.edges, epoch=batch.epoch)
        where = targets.device
        if batch.host_ids is not None:
            batch.host_ids = ids
        batch.ids, batch.indptr, batch.indices = ids.to(where), sample.indptr.to(where), sample.indices.to(where)
        batch.hops = sample.num_sampled_nodes, sample.num_sampled_edges
        if self.wants_degree:
            batch.degree = self.neighborhoods.degree(sample).to(where)

    def encode(self, rows: Tensor, batch: FlowBatch) -> Tensor:  # [n, d] -> [u, d]
        """Encoded rows of a batch's nodes, from the rows of all that were sampled."""
        assert batch.ids is not None
        assert batch.indptr is not None
        assert batch.indices is not None
        sample = Sample(batch.ids, batch.indptr, batch.indices, *batch.hops)
        degree = batch.ids if batch.degree is None else batch.degree
        return self.model(_Input(sample.blocks, rows, batch.ids, degree))  # type: ignore[no-any-return]

    def update(self, gradients: Sequence[Tensor], *, lr: float) -> None:
        """One step of the weights, by Adagrad (or sgd, where rows are updated by it)."""
        with torch.no_grad():
            for weight, state, gradient in zip(self.weights, self.state, gradients, strict=True):
                delta, squares = self.optimizer.deltas(gradient.reshape(1, -1), state, lr=lr)
                weight.add_(delta.view_as(weight))
                state.add_(squares)

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of a run depends on."""
        return {"model": self.model.state_dict(), "optimizer": self.state}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Put everything as `state_dict` had it."""
        self.model.load_state_dict(saved["model"])
        for state, kept in zip(self.state, saved["optimizer"], strict=True):
            state.copy_(kept)


def make_encoder(options: LinkOptions) -> GNN:
    """The network that the options describe, untrained, on their device: a layer for each number of `fanout`, no dropout.

    Attention has eight heads, or as many of them as divide `hidden`; the last layer has one.
    """
    hidden = options.hidden or options.dim
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        network = GNN(
            options.dim,
            hidden,
            options.dim,
            layers=len(options.fanouts),
            conv=options.encoder,  # type: ignore[arg-type]
            dropout=0.0,
            heads=gcd(hidden, 8),
        )
    return network.to(options.device)
