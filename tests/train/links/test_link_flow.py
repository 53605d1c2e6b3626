"""The flow of a batch: wherever rows are, one batch at a time gives the same bits.

Copies and streams are stood in for, so that the way of a batch is followed without a GPU; tests/gpu has the real ones.
"""

from contextlib import contextmanager

import pytest
import torch

import headrace as hr
from headrace.pipeline import Pipeline
from headrace.store import TrainedArray
from headrace.train import LinkOptions
from headrace.train.links.batches import EdgeBatches
from headrace.train.links.data import LinkData
from headrace.train.links.encoder import LinkEncoder
from headrace.train.links.flow import FlowBatch, flow_class, host
from headrace.train.links.flow.cpu import CPUFlow
from headrace.train.links.flow.device import DeviceFlow
from headrace.train.links.flow.host import HostFlow
from headrace.train.links.flow.row_optimizer import RowOptimizer
from headrace.train.links.memory import ROW_TYPES, edges_fit
from headrace.train.links.options import decoder_of


class Copied:
    """Every copy is another tensor, and says what was asked for."""

    def __init__(self):
        self.inside, self.drawn, self.taken = False, 0, 0

    @contextmanager
    def ahead(self):
        self.inside, self.drawn = True, self.drawn + 1
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


class Hold:
    def __init__(self):
        self.released = 0

    def release(self):
        self.released += 1


def trained(kind, options, staleness=0):
    """Two epochs through the stages of a flow, and the losses of all batches."""
    edges = LinkData.of(hr.generate.knowledge(200, 2000, 4, splits=(1.0, 0.0, 0.0)))
    decoder = decoder_of(edges.num_relations, options)
    decoder.reset_parameters(options.init, torch.Generator().manual_seed(options.seed))
    rows = TrainedArray.create(
        edges.num_nodes,
        options.dim,
        state=RowOptimizer(options.optimizer).state_width(options.dim),
        dtype=ROW_TYPES[options.row_type],
        init=(options.init, options.seed),
        seed=options.seed,
        threads=1,
    )
    encoder = None if options.encoder == "none" else LinkEncoder(edges.train, edges.num_nodes, options)
    known = edges.known("train") if options.filter_negatives else None
    flow, losses = kind(edges.train, rows, decoder, options, known=known, encoder=encoder), []
    deal, hold = EdgeBatches(flow.triples, edges.num_nodes, options), Hold()
    for epoch in range(2):
        source = [FlowBatch(batch, epoch, options.lr, hold=hold) for batch in deal.plan(epoch).batches()]
        losses += [float(batch.loss) for batch in Pipeline(source, flow.stages(), staleness=staleness)]
        assert all(batch.rows is batch.state is batch.place is batch.hidden is None for batch in source)
        assert all(batch.bytes > 0 for batch in source) or not options.negatives
    assert hold.released == len(losses)
    return flow, losses


def chosen(**way):
    sizes = {"dim": 8, "batch_size": 100, "negatives": 20, "chunks": 4, "init": 0.1}
    return LinkOptions(**{"decoder": "complex", "storage": "host", "raw": True, "threads": 1, **sizes, **way})


WAYS = [
    {},  # stepped natively, in place, on a CPU
    {"row_type": "bf16"},  # natively, on copies
    {"loss": "logistic"},
    {"loss": "logistic", "row_type": "bf16"},
    {"filter_negatives": True},
    {"partitions": 4, "buffer": 2, "order": "beta"},
    {"encoder": "gcn"},
    {"decoder": "rotate", "loss": "margin", "optimizer": "adagrad"},
]


def assert_same(one, other):
    (flow, losses), (other_flow, other_losses) = one, other
    assert losses == other_losses
    for name in ("rows", "state"):
        assert torch.equal(getattr(flow.rows, name), getattr(other_flow.rows, name))
    assert torch.equal(flow.decoder.relation, other_flow.decoder.relation)
    assert torch.equal(flow.relation_state, other_flow.relation_state)


@pytest.mark.parametrize("draws_on_gpu", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_rows_that_are_copied_to_and_fro_give_the_same_bits(monkeypatch, way, draws_on_gpu):
    copies = Copied()
    monkeypatch.setattr(host, "Copies", lambda device: copies)
    monkeypatch.setattr(host, "edges_fit", lambda *_, **__: draws_on_gpu)
    at_home, moved = trained(CPUFlow, chosen(**way)), trained(HostFlow, chosen(**way))
    assert_same(at_home, moved)
    assert copies.taken == len(moved[1]) >= 40
    assert copies.drawn == (copies.taken if draws_on_gpu else 0)


@pytest.mark.parametrize("way", [*WAYS, {"negatives": 0, "storage": "device", "optimizer": "adagrad"}], ids=str)
def test_rows_that_are_with_a_device_give_the_same_bits(way):
    assert_same(trained(CPUFlow, chosen(**way)), trained(DeviceFlow, chosen(**way)))


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_on_a_cpu_batches_in_flight_are_never_stale(way):
    assert_same(trained(CPUFlow, chosen(**way)), trained(CPUFlow, chosen(**way), staleness=4))


def test_only_stages_that_do_something():
    flow, _ = trained(CPUFlow, chosen())
    assert flow_class(flow.rows, flow.options) is CPUFlow
    assert [stage.name for stage in flow.stages()] == ["load", "compute"]
    assert [stage.name for stage in trained(DeviceFlow, chosen())[0].stages()] == ["load", "compute", "update"]


def test_without_a_gpu_edges_stay_where_they_are():
    assert not edges_fit(torch.zeros(10, 3, dtype=torch.int32), torch.device("cpu"))


def test_a_decoder_of_ones_own_gives_the_bits_of_the_one_that_it_equals(monkeypatch):
    class Same(hr.nn.DistMult):
        name = "same"

    monkeypatch.setitem(hr.nn.DECODERS, "same", Same)
    native, own = trained(CPUFlow, chosen(decoder="distmult")), trained(CPUFlow, chosen(decoder="same"))
    assert native[0].native is not None
    assert own[0].native is None
    assert_same(native, own)
