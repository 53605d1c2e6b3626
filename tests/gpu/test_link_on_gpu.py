"""Link prediction on a GPU gives what the CPU gives, wherever its rows are."""

import pytest
import torch

import headrace as hr
from headrace.nn.links import distance_decoders
from headrace.sample import KnownEdges, SharedNegatives
from headrace.store import TrainedArray
from headrace.train import LinkOptions, link, rank
from link_cases import Losses

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]

SMALL = {"dim": 16, "epochs": 2, "batch_size": 100, "negatives": 20, "chunks": 4, "init": 0.1}


@pytest.fixture(scope="module")
def knowledge():
    generator = torch.Generator().manual_seed(0)
    head, relation = torch.arange(200).repeat(6), torch.arange(6).repeat_interleave(200)
    triples = torch.stack([head, relation, (head + 3 * relation + 1) % 200], 1)[torch.randperm(1200, generator=generator)].int()
    graph = hr.Graph.from_edges(triples[:, 0], triples[:, 2], 200)
    extra = {"train": triples[:1000], "valid": triples[1000:1100], "test": triples[1100:]}
    return hr.Dataset(graph, extra=extra, info={"num_relations": 6})


WAYS = [
    {"storage": "device"},
    {"storage": "host"},
    {"storage": "device", "decoder": "rotate", "loss": "self_adversarial", "margin": 2.0},
    {"storage": "host", "decoder": "transe", "filter_negatives": True},
    {"storage": "device", "filter_negatives": True, "negative_weights": "degree"},
    {"storage": "device", "negatives": 0, "optimizer": "adagrad", "reciprocal": True},
    {"storage": "host", "partitions": 8, "buffer": 4},
    {"storage": "device", "encoder": "sage", "fanout": (5, 3)},
    {"storage": "device", "encoder": "gin"},
    {"storage": "host", "encoder": "gcn"},
    {"storage": "host", "encoder": "gat", "partitions": 8, "buffer": 4},
]


@pytest.mark.parametrize("way", [{}, {"partitions": 8, "buffer": 4}, {"filter_negatives": True}, {"encoder": "sage"}], ids=str)
def test_edges_on_the_gpu_give_the_rows_that_edges_on_the_host_give(knowledge, monkeypatch, way):
    options = LinkOptions(**{**SMALL, **way}, storage="host", device="cuda")
    on_gpu = link(knowledge, options)
    monkeypatch.setattr("headrace.train.links.flow.host.edges_fit", lambda *_, **__: False)
    on_host = link(knowledge, options)
    assert torch.equal(on_gpu.rows.rows, on_host.rows.rows)
    assert torch.equal(on_gpu.rows.state, on_host.rows.state)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_run_is_that_of_the_cpu(knowledge, way):
    on_cpu, on_gpu = Losses(), Losses()
    expected = link(knowledge, LinkOptions(**{**SMALL, **way}), watcher=on_cpu)
    found = link(knowledge, LinkOptions(**{**SMALL, **way}, device="cuda"), watcher=on_gpu)
    assert on_gpu.seen[:5] == pytest.approx(on_cpu.seen[:5], rel=1e-3)
    assert on_gpu.seen[-1] == pytest.approx(on_cpu.seen[-1], rel=0.05)
    assert found.test["mrr"] == pytest.approx(expected.test["mrr"], abs=0.05)


@pytest.mark.parametrize("storage", ["device", "host"])
def test_the_same_run_gives_the_same_bits(knowledge, storage):
    first, second = (link(knowledge, LinkOptions(**SMALL, storage=storage, device="cuda")) for _ in range(2))
    assert torch.equal(first.rows.rows, second.rows.rows)
    assert torch.equal(first.decoder.relation, second.decoder.relation)


STAGES = {"device": ["load", "compute", "update"], "host": ["load", "to device", "compute", "from device", "update"]}


@pytest.mark.parametrize("storage", ["device", "host"])
def test_batches_in_flight(knowledge, storage):
    seen = Losses()
    result = link(
        knowledge,
        LinkOptions(**{**SMALL, "epochs": 20, "batch_size": 20}, storage=storage, staleness=3, device="cuda"),
        watcher=seen,
    )
    assert max(e["in_flight"] for e in seen.epochs) <= 4
    assert [stage["name"] for stage in seen.epochs[0]["stages"]] == [*STAGES[storage], "consumer"]
    assert seen.epochs[-1]["loss"] < seen.epochs[0]["loss"]
    assert bool(result.rows.rows.isfinite().all())


@pytest.mark.parametrize("buffer_on", ["host", "device"])
def test_disk_run_equals_memory_run(knowledge, tmp_path, buffer_on):
    ways = {**SMALL, "partitions": 8, "buffer": 4, "device": "cuda"}
    in_memory = link(knowledge, LinkOptions(**ways, storage="device" if buffer_on == "device" else "host"))
    on_disk = link(knowledge, LinkOptions(**ways, storage="disk", buffer_on=buffer_on), out=tmp_path / "run")
    assert on_disk.test["mrr"] == pytest.approx(in_memory.test["mrr"], abs=1e-6)
    assert torch.equal(on_disk.decoder.relation, in_memory.decoder.relation)


def test_negatives_and_known_edges_are_those_of_the_cpu(knowledge):
    triples = knowledge.extra["train"]
    sampler = SharedNegatives(200, amount=10, chunks=3, degree_fraction=0.4, seed=3)
    head, tail = triples[:60, 0].long(), triples[:60, 2].long()
    assert torch.equal(sampler.sample(head.cuda(), tail.cuda()).cpu(), sampler.sample(head, tail))
    known = KnownEdges(triples, num_nodes=200, num_relations=6)
    known_on_gpu = KnownEdges(triples.cuda(), num_nodes=200, num_relations=6)
    for side in ("tail", "head"):
        expected = known.answers(head, triples[:60, 1], side=side)
        found = known_on_gpu.answers(head.cuda(), triples[:60, 1].cuda(), side=side)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("sampled", [None, 50])
def test_ranks_are_those_of_the_cpu(knowledge, sampled):
    torch.manual_seed(0)
    table, decoder = torch.randn(200, 16), hr.nn.ComplEx(16, 6)
    decoder.reset_parameters(1.0)
    known = KnownEdges(knowledge.extra["train"], num_nodes=200, num_relations=6)
    expected = rank(decoder, TrainedArray(table, torch.zeros(200, 1)), knowledge.extra["test"], known=known, sampled=sampled)
    rows = TrainedArray(table.cuda(), torch.zeros(200, 1).cuda())
    found = rank(decoder.cuda(), rows, knowledge.extra["test"], known=known, sampled=sampled, device="cuda")
    assert found.filtered.mrr == pytest.approx(expected.filtered.mrr, abs=1e-4)
    assert found.raw.mean_rank == pytest.approx(expected.raw.mean_rank, abs=0.02)


@pytest.mark.parametrize("kind", [hr.nn.TransE, hr.nn.RotatE])
def test_tiles_of_distances(kind, monkeypatch):
    monkeypatch.setitem(distance_decoders._TILE, "cuda", 500)
    decoder = kind(8, 3)
    query, others = (torch.randn(2, n, 8, requires_grad=True) for n in (5, 11))
    expected = decoder.score(query, others)
    grads = torch.autograd.grad(expected.square().sum(), [query, others])
    leaves = [x.detach().cuda().requires_grad_() for x in (query, others)]
    found = decoder.score(*leaves)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
    for a, b in zip(torch.autograd.grad(found.square().sum(), leaves), grads, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("chunks", "questions", "candidates", "width"), [(1, 1, 1, 1), (3, 70, 5, 16), (2, 300, 1000, 100), (1, 9, 5000, 20)]
)
def test_softmax_of_shared_candidates(chunks, questions, candidates, width):
    generator = torch.Generator().manual_seed(0)
    shapes = [(chunks, questions, width), (chunks, questions, width), (chunks, candidates, width)]
    tensors = [torch.randn(shape, generator=generator) / width**0.25 for shape in shapes]
    hidden = (torch.rand(chunks * questions * candidates, generator=generator) < 0.1).nonzero()[:, 0]

    def found(kind, device):
        leaves = [x.to(device, kind).requires_grad_() for x in tensors]
        loss = hr.nn.shared_softmax_loss(*leaves, hidden=hidden.to(device))
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]

    for exact, on_gpu in zip(found(torch.float64, "cpu"), found(torch.float32, "cuda"), strict=True):
        torch.testing.assert_close(on_gpu.cpu().double(), exact, rtol=1e-4, atol=1e-6)


def test_what_is_not_finite_ranks_as_on_the_cpu():
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(50, 8, generator=generator)
    for row, value in ((3, torch.nan), (4, torch.inf), (5, -torch.inf), (6, 3e38), (7, -3e38)):
        table[row] = value
    triples = torch.stack([torch.randint(50, (200,), generator=generator), torch.zeros(200, dtype=torch.int64)], 1)
    triples = torch.cat([triples, torch.randint(50, (200, 1), generator=generator)], 1)
    known = KnownEdges(triples, num_nodes=50, num_relations=1)
    rows = TrainedArray(table, torch.zeros(50, 1))
    ranked = [rank(hr.nn.Dot(8).to(d), rows, triples, known=known, device=d) for d in ("cpu", "cuda")]
    assert ranked[0].not_finite == ranked[1].not_finite > 0
    assert ranked[0].filtered.mean_rank == pytest.approx(ranked[1].filtered.mean_rank)
