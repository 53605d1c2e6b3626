"""Batches that are numbered where they are computed, with rows on the host: the bits of those that are numbered on the host.

Copies and streams are stood in for, so that the way of a batch is followed without a GPU; tests/gpu has the real ones.
"""

from contextlib import ExitStack, contextmanager

import pytest
import torch

import headrace as hr
from headrace.train import LinkOptions
from headrace.train.links.data import LinkData
from headrace.train.links.link import make_trainer
from headrace.train.links.memory import edges_fit


class Copied:
    """Every copy is another tensor, and says what was asked for."""

    def __init__(self):
        self.inside, self.numbered, self.taken = False, 0, 0

    @contextmanager
    def ahead(self):
        self.inside, self.numbered = True, self.numbered + 1
        yield
        self.inside = False

    def put(self, tensors):
        assert not self.inside
        return [tensor.clone() for tensor in tensors], object()

    def receive(self, tensors, arrived):
        assert any(tensor is not None for tensor in tensors)

    def mark(self):
        return object()

    def take(self, tensors, computed):
        self.taken += 1
        return [tensor.clone() for tensor in tensors]


def trained(data, options, copies=None):
    edges = LinkData.of(data)
    torch.manual_seed(options.seed)
    with ExitStack() as opened:
        trainer = make_trainer(edges, options, opened)
        flow = trainer.recipe.flow
        if copies is not None:
            flow.copies, flow.ahead = copies, True
        for _ in range(options.epochs):
            trainer.epoch()
        return flow.rows


@pytest.mark.parametrize(
    "way",
    [{}, {"filter_negatives": True}, {"partitions": 4, "buffer": 2, "order": "beta"}, {"row_type": "bf16"}, {"encoder": "gcn"}],
    ids=str,
)
def test_batches_numbered_ahead_give_the_same_rows(way):
    data = hr.generate.knowledge(200, 2000, 4, splits=(1.0, 0.0, 0.0))
    sizes = {"dim": 8, "epochs": 2, "batch_size": 100, "negatives": 20, "chunks": 4}
    # A loss that the native step does not have: rows in main memory would be stepped in place.
    options = LinkOptions(decoder="complex", loss="logistic", storage="host", raw=True, threads=1, **sizes, **way)
    plain, copies = trained(data, options), Copied()
    ahead = trained(data, options, copies)
    assert copies.numbered == copies.taken >= 40
    assert torch.equal(plain.rows, ahead.rows)
    assert torch.equal(plain.state, ahead.state)


def test_without_a_gpu_edges_stay_where_they_are():
    assert not edges_fit(torch.zeros(10, 3, dtype=torch.int32), torch.device("cpu"))
