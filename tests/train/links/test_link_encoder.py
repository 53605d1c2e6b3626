"""Link prediction through an encoder: against a plain loop, storage against storage, and runs that stop and go on."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.nn.links.link_losses import LOW, loss_named
from headrace.store import Partitioned, TrainedArray
from headrace.train import LinkOptions, Run, export, link, neighbors
from headrace.train.fit import torch_threads
from headrace.train.inference import encoded as link_encoded
from headrace.train.inference.encoded import encode_all
from headrace.train.links.batches import EdgeBatch, EdgeBatches
from headrace.train.links.data import LinkData
from headrace.train.links.edges import BucketedEdges
from headrace.train.links.encoder import make_encoder
from headrace.train.links.flow.row_optimizer import RowOptimizer
from headrace.train.links.link import make_decoder
from headrace.train.links.memory import LinkMemory
from headrace.train.links.neighborhoods import Neighborhoods, Numbering, without_edges
from link_cases import Losses
from training_cases import StopAt, StoppedError, ctrl_c_at, lasting

SMALL = {"dim": 8, "epochs": 2, "batch_size": 64, "negatives": 12, "chunks": 4, "threads": 1, "lr": 0.1, "init": 0.1}
KINDS = ("sage", "gcn", "gin", "gat")


def small(**changes):
    return LinkOptions(**{**SMALL, "decoder": "distmult", "encoder": "sage", "fanout": (4,), **changes})


@pytest.fixture(scope="module")
def knowledge():
    """Relation r leads from node i to i + r + 1; nodes 40 and 41 have no training edge, and 0 has one to itself."""
    nodes, generator = 40, torch.Generator().manual_seed(0)
    head, relation = torch.arange(nodes).repeat(6), torch.arange(6).repeat_interleave(nodes)
    triples = torch.stack([head, relation, (head + relation + 1) % nodes], 1)[torch.randperm(240, generator=generator)].int()
    train = torch.cat([triples[:200], torch.tensor([[0, 1, 0]]).int()])
    test = torch.cat([triples[220:], torch.tensor([[40, 0, 1], [3, 2, 41]]).int()])
    graph = hr.Graph.from_edges(triples[:, 0], triples[:, 2], nodes + 2)
    return hr.Dataset(graph, extra={"train": train, "valid": triples[200:220], "test": test}, info={"num_relations": 6})


class Given:
    table = None

    def __init__(self, blocks, x, ids, degree):
        self.blocks, self.x, self.n_id, self.degree = blocks, x, ids, degree


def plain_loop(data, options, numbered):
    """The same training in plain PyTorch: a dense table, one graph per state of the buffer, gradients by autograd, Adagrad.

    `numbered` are the nodes of each batch in the order that they were numbered in, on which sums of weights' gradients depend.
    """
    edges = LinkData.of(data)
    decoder, model = make_decoder(edges, options), make_encoder(options)
    table = TrainedArray.create(edges.num_nodes, options.dim, init=(options.init, options.seed)).rows
    parameters = [decoder.relation, *model.parameters()]
    squares, parameter_squares = torch.zeros(edges.num_nodes, 1), [torch.zeros(1, one.numel()) for one in parameters]
    by_row, by_float = RowOptimizer("row_adagrad"), RowOptimizer("adagrad")
    negatives = hr.sample.SharedNegatives(
        edges.num_nodes, amount=options.negatives, chunks=options.chunks, degree_fraction=options.degree_fraction, seed=options.seed
    )
    loss_of, deal, losses = loss_named(options.loss, margin=options.margin), EdgeBatches(edges.train, edges.num_nodes, options), []
    size = -(-edges.num_nodes // (options.partitions or 1))
    for epoch in range(options.epochs):
        plan = deal.plan(epoch)
        for batch in plan.batches():
            state = range(1) if plan.order is None else sorted(plan.order.states[batch.step])
            near = [[(edges.train[:, end].long() // size == p) for p in state] for end in (0, 2)]
            here = torch.cat([edges.train[h & t] for h in near[0] for t in near[1]])  # bucket by bucket
            resident = torch.cat([torch.arange(p * size, min(p * size + size, edges.num_nodes)) for p in state])
            number = torch.full((edges.num_nodes,), -1)
            number[resident] = torch.arange(len(resident))
            graph = hr.Graph.from_edges(number[here[:, 0].long()], number[here[:, 2].long()], len(resident), undirected=True)
            sampler = hr.sample.NeighborSampler(graph, options.fanouts, seed=options.seed)

            head, relation, tail = edges.train[batch.positions].long().unbind(1)
            chunks = next(k for k in range(options.chunks, 0, -1) if options.chunks % k == 0 and len(head) % k == 0)
            drawn = negatives.sample(head, tail, epoch=epoch, batch=batch.index, ranges=batch.ranges, chunks=chunks)
            wanted, targets = torch.cat([head, tail, drawn.flatten()]), next(numbered)
            assert targets.sort().values.tolist() == wanted.unique().tolist()
            place = torch.zeros(edges.num_nodes, dtype=torch.int64).index_put((targets,), torch.arange(len(targets)))[wanted]
            sample = sampler.sample(number[targets], epoch=epoch, batch=batch.index)
            ids = resident[sample.nodes.long()]
            sample = without_edges(sample, ids, head, tail)
            table.requires_grad_()
            rows = table[ids]
            encoded = model(Given(sample.blocks, rows, ids, graph.degrees(loops=False)[sample.nodes.long()]))
            h, t, n = F.embedding(place, encoded).split([len(head), len(tail), drawn.numel()])
            shape = (chunks, len(head) // chunks)
            query = torch.cat([question.view(*shape, -1) for question in decoder.queries(h, relation, t)], 1)
            positive = decoder.compare(query, torch.cat([t.view(*shape, -1), h.view(*shape, -1)], 1))
            answer = torch.cat([tail.view(shape), head.view(shape)], 1)
            negative = decoder.score(query, n.view(chunks, -1, options.dim))
            negative = negative.masked_fill(answer[:, :, None] == drawn[:, None], LOW)
            loss = loss_of(positive, negative)
            grad, *grads = torch.autograd.grad(loss, [table, *parameters])
            losses.append(loss.item())
            with torch.no_grad():
                delta, added = by_row.deltas(grad, squares, lr=options.lr)
                table, squares = table.detach() + delta, squares + added
                for parameter, square, gradient in zip(parameters, parameter_squares, grads, strict=True):
                    delta, added = by_float.deltas(gradient.reshape(1, -1), square, lr=options.lr)
                    parameter += delta.view_as(parameter)
                    square += added
    return table, decoder, model, losses


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"encoder": "gcn", "fanout": (3, 2), "hidden": 12},
        {"encoder": "gin", "decoder": "complex"},
        {"encoder": "gat", "fanout": (5,), "batch_size": 33, "loss": "margin"},
        {"fanout": (3, 3), "partitions": 5, "buffer": 2, "order": "beta", "batch_size": 40},
        {"encoder": "gcn", "partitions": 8, "buffer": 4, "order": "comet", "dim": 1},
    ],
)
def test_one_batch_in_flight_equals_a_plain_loop_to_the_bit(knowledge, changes, monkeypatch):
    numbered, sample = [], Neighborhoods.sample

    def noting(self, targets, edges, *, epoch):
        numbered.append(targets.clone())
        return sample(self, targets, edges, epoch=epoch)

    monkeypatch.setattr(Neighborhoods, "sample", noting)
    options, seen = small(**{"loss": "logistic", **changes}), Losses()
    result = link(knowledge, options, watcher=seen)
    with torch_threads(1):
        table, decoder, model, losses = plain_loop(knowledge, options, iter(numbered))
    assert seen.seen == losses
    assert torch.equal(result.rows.rows, table)
    assert torch.equal(result.decoder.relation, decoder.relation)
    for ours, theirs in zip(result.encoder.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def whole_graph(data):
    train = LinkData.of(data).train
    return hr.Graph.from_edges(train[:, 0], train[:, 2], data.num_nodes, undirected=True)


@pytest.mark.parametrize("encoder", ["sage", "gcn", "gat"])
@pytest.mark.parametrize("changes", [{}, {"fanout": (2, 2), "hidden": 16}, {"partitions": 8, "buffer": 4}])
def test_what_is_ranked_is_encoded_over_all_neighbors(knowledge, encoder, changes):
    result = link(knowledge, small(encoder=encoder, epochs=1, **changes))
    rows, graph = result.rows.rows, whole_graph(knowledge)
    with torch.no_grad():
        for layer in result.encoder.layers:
            rows = layer(rows, graph)
    torch.testing.assert_close(result.encoded.rows, rows, rtol=1e-5, atol=1e-6)
    assert not result.encoder.training


def test_pieces_of_any_size_give_the_same_rows(knowledge, monkeypatch):
    options = small(fanout=(3, 3), partitions=5, buffer=2, order="beta")
    edges = LinkData.of(knowledge)
    deal, rows = EdgeBatches(edges.train, 42, options), TrainedArray.create(42, 8, init=(0.5, 1))
    model = make_encoder(options)
    wanted = encode_all(model, rows, edges.train, deal).rows
    assert model.training
    for limit in (2, 13):
        monkeypatch.setattr(link_encoded, "_piece_rows", lambda _, limit=limit: limit)
        monkeypatch.setattr(link_encoded, "most_neighbors", lambda _: (1000, 1000))
        torch.testing.assert_close(encode_all(model, rows, edges.train, deal).rows, wanted)


def test_hubs_are_drawn_from_and_gin_sees_as_many_as_in_training(knowledge, monkeypatch):
    assert link_encoded.most_neighbors(small(encoder="gin", fanout=(5, 3))) == (3, 5)
    monkeypatch.setattr(link_encoded, "MOST", 2)
    first, again = (link(knowledge, small(epochs=1)).encoded.rows for _ in range(2))
    assert torch.equal(first, again)
    monkeypatch.undo()
    assert not torch.equal(first, link(knowledge, small(epochs=1)).encoded.rows)


ORDERED = {"partitions": 8, "buffer": 4, "epochs": 2, "batch_size": 11}


@pytest.mark.parametrize("encoder", KINDS)
@pytest.mark.parametrize("more", [{"order": "comet"}, {"order": "best", "row_type": "bf16", "fanout": (3, 2), "hidden": 16}])
def test_disk_run_equals_memory_run_for_the_same_order(knowledge, tmp_path, encoder, more):
    in_memory = link(knowledge, small(**{**ORDERED, **more}, encoder=encoder), out=tmp_path / "memory")
    on_disk = link(knowledge, small(**{**ORDERED, **more}, encoder=encoder, storage="disk"), out=tmp_path / "disk")
    with Partitioned.open(tmp_path / "disk" / "rows", capacity=4) as rows:
        table = torch.cat([piece for _, piece in rows.scan()])
    assert torch.equal(table, in_memory.rows.rows.float())
    assert torch.equal(on_disk.decoder.relation, in_memory.decoder.relation)
    for ours, theirs in zip(on_disk.encoder.state_dict().values(), in_memory.encoder.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    assert on_disk.test == in_memory.test
    files = [np.load(tmp_path / name / "encoded.npy") for name in ("memory", "disk")]
    assert np.array_equal(*files)
    assert np.array_equal(files[0], in_memory.encoded.rows.numpy())
    header = Run(tmp_path / "disk").header
    assert header["neighbors_from"] == "edges between the 4 resident partitions"
    assert "layer by layer" in header["evaluated_with"]
    assert not list((tmp_path / "disk").glob("encoded.npy.*"))


def finished(place):
    run = Run(place)
    lines = [{k: v for k, v in line.items() if k not in ("eval_seconds", "disk")} for line in run.metrics()]
    return lasting(lines), run.result()["test"], np.load(place / "encoded.npy").tolist()


@pytest.mark.parametrize(
    "changes", [{"row_type": "bf16", "encoder": "gin"}, {"partitions": 4, "buffer": 2, "order": "beta", "storage": "disk"}]
)
@pytest.mark.parametrize("stop", [ctrl_c_at, StopAt])
def test_a_stopped_run_goes_on_to_the_same_bits(knowledge, tmp_path, changes, stop):
    options = small(validate_every=1, log_every=1, checkpoint_seconds=0.0 if stop is StopAt else 1e9, **changes)
    link(knowledge, options, out=tmp_path / "whole")
    steps = len(Run(tmp_path / "whole").metrics("step"))
    for kind, number in (("step", 2), ("step", steps - 1), ("validating", 2), ("epoch", 1)):
        place = tmp_path / f"{kind}{number}"
        with pytest.raises((KeyboardInterrupt, StoppedError)):
            link(knowledge, options, out=place, watcher=stop(kind, number))
        link(knowledge, options, out=place, resume=True)
        assert finished(place) == finished(tmp_path / "whole")
    again = link(knowledge, options, out=tmp_path / "whole", resume=True)
    if again.encoded is not None:
        assert again.encoded.rows.tolist() == finished(tmp_path / "whole")[2]


def test_the_best_epoch_is_kept(knowledge):
    seen = Losses()
    result = link(knowledge, small(epochs=12, lr=1.0, validate_every=1, seed=3), watcher=seen)
    scores = [e["val_mrr"] for e in seen.epochs]
    again = link(knowledge, small(epochs=scores.index(max(scores)) + 1, lr=1.0, seed=3))
    assert result.val_mrr == max(scores)
    assert scores.index(max(scores)) < 11  # or this shows nothing
    assert torch.equal(again.rows.rows, result.rows.rows)
    assert torch.equal(again.encoded.rows, result.encoded.rows)


@pytest.mark.parametrize("encoder", KINDS)
def test_batches_in_flight_are_bounded_and_still_learn(knowledge, tmp_path, encoder):
    seen = Losses()
    options = small(**{**ORDERED, "epochs": 4}, encoder=encoder, storage="disk", staleness=3)
    result = link(knowledge, options, watcher=seen, out=tmp_path / "run")
    assert 1 <= max(e["in_flight"] for e in seen.epochs) <= 4
    assert seen.epochs[-1]["loss"] < seen.epochs[0]["loss"]
    assert result.rows is None
    assert result.encoded is None
    assert bool(torch.from_numpy(np.load(tmp_path / "run" / "encoded.npy")).isfinite().all())


def test_an_encoder_learns_communities():
    data = hr.generate.community(nodes=300, edges=6000, classes=3, features=4)
    result = link(data, LinkOptions(dim=16, epochs=5, batch_size=200, negatives=50, encoder="sage", init=0.1, threads=1))
    chance = sum(1 / k for k in range(1, 301)) / 300
    assert result.test["mrr"] > 1.5 * chance


def test_neighbors_are_resident_and_of_training_edges_only(knowledge):
    options, edges = small(partitions=6, buffer=3, order="beta", fanout=(20, 20)), LinkData.of(knowledge)
    deal, around = EdgeBatches(edges.train, 42, options), Neighborhoods(edges.train, 42, options)
    pairs = {frozenset(pair) for pair in edges.train[:, ::2].tolist()}
    for batch in deal.plan(0).batches():
        resident = torch.cat([torch.arange(*part) for part in batch.ranges])
        ids, sample = around.sample(resident[:5], replace(batch, positions=batch.positions[:0]), epoch=0)
        assert set(ids.tolist()) <= set(resident.tolist())
        assert ids[:5].tolist() == resident[:5].tolist()
        assert ids.unique().numel() == len(ids)
        for source, target in sample.edge_index().T.tolist():
            assert frozenset((int(ids[source]), int(ids[target]))) in pairs
    nobody, sample = around.sample(torch.tensor([], dtype=torch.int64), replace(batch, positions=batch.positions[:0]), epoch=0)
    assert len(nobody) == sample.num_edges == 0


@pytest.mark.parametrize("seeds", [0, 1, 30])
def test_hidden_edges_are_those_between_the_ends_asked_about(knowledge, seeds):
    edges, options = LinkData.of(knowledge), small(fanout=(5, 3))
    batch = EdgeBatch(0, torch.arange(seeds))
    head, _, tail = edges.train[batch.positions].long().unbind(1)
    ends = torch.cat([head, tail]).unique()
    ids, less = Neighborhoods(edges.train, 42, options).sample(ends, batch, epoch=0)
    sample = hr.sample.NeighborSampler(whole_graph(knowledge), options.fanouts).sample(ends)
    assert ids.tolist() == sample.nodes.tolist()

    def edges_of(one):  # row, neighbor, and the hop that drew it
        rows = torch.repeat_interleave(torch.arange(one.indptr.numel() - 1), one.indptr.diff())
        hops = torch.repeat_interleave(torch.arange(2), torch.tensor(one.num_sampled_edges))
        return list(zip(ids[rows].tolist(), ids[one.indices.long()].tolist(), hops.tolist(), strict=True))

    asked = {frozenset(pair) for pair in zip(head.tolist(), tail.tolist(), strict=True)}
    assert edges_of(less) == [edge for edge in edges_of(sample) if frozenset(edge[:2]) not in asked]
    assert torch.equal(less.nodes, sample.nodes)
    assert seeds == 0 or less.num_edges < sample.num_edges
    assert [block.num_src for block in less.blocks] == [block.num_src for block in sample.blocks]


def test_a_node_without_resident_neighbors_is_encoded_by_itself():
    """Both edges of node 0 lead to the other partition: in its own it is alone."""
    triples = torch.tensor([[0, 0, 5], [6, 0, 0], [1, 0, 2]])
    options = small(partitions=2, buffer=2, order="beta")
    batch = EdgeBatch(0, torch.arange(0), 0, ((0, 4),), lambda: torch.tensor([2]))
    ids, sample = Neighborhoods(triples, 8, options).sample(torch.tensor([0, 2]), batch, epoch=0)
    assert ids.tolist() == [0, 2, 1]
    assert sample.indptr.tolist() == [0, 0, 1]


def test_edges_between_resident_partitions_are_the_same_from_a_file(knowledge, tmp_path):
    edges, options = LinkData.of(knowledge), small(partitions=7, buffer=3, order="beta")
    file = BucketedEdges.write(tmp_path / "edges.bin", edges.train, num_nodes=42, partitions=7)
    plans = [EdgeBatches(edges.train, 42, options).plan(1), EdgeBatches(file.triples, 42, options, file=file).plan(1)]
    for ours, theirs in zip(plans[0].batches(), plans[1].batches(), strict=True):
        assert torch.equal(edges.train[ours.resident()], file.triples[theirs.resident()])


@pytest.mark.parametrize("ranges", [[(0, 5)], [(3, 7), (7, 7), (10, 30)], [(2, 3), (2**33, 2**33 + 9)]])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_numbers_of_ranges_have_no_gaps(ranges, kind):
    numbering = Numbering.of(ranges)
    ids = torch.cat([torch.arange(*part) for part in ranges])
    assert len(numbering) == len(ids)
    assert numbering.number(ids).tolist() == list(range(len(ids)))
    assert numbering.ids(torch.arange(len(ids)).to(kind)).tolist() == ids.tolist()


@pytest.mark.parametrize("storage", ["host", "disk"])
def test_exports_and_neighbors_are_of_encoded_rows(knowledge, tmp_path, storage):
    more = {"partitions": 4, "buffer": 2, "order": "beta"} if storage == "disk" else {}
    link(knowledge, small(epochs=1, storage=storage, **more), out=tmp_path / "run")
    export(tmp_path / "run", tmp_path / "rows.npy", format="npy")
    encoded = np.load(tmp_path / "run" / "encoded.npy")
    assert np.array_equal(np.load(tmp_path / "rows.npy"), encoded)
    rows = torch.from_numpy(encoded)
    wanted = F.cosine_similarity(rows, rows[3:4])
    wanted[3] = -2
    found = neighbors(tmp_path / "run", 3, k=3)
    assert [n.score for n in found.nearest] == pytest.approx(wanted.topk(3).values.tolist(), rel=1e-4)
    (tmp_path / "run" / "encoded.npy").unlink()
    with pytest.raises(ValueError, match="has not finished"):
        neighbors(tmp_path / "run", 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "gatv3"}, "encoder must be one of none, sage"),
        ({"negatives": 0}, "negatives 0 scores every node"),
        ({"fanout": (3, 0)}, "fanout must be numbers from 1 up, not 3,0"),
        ({"hidden": -1}, "hidden must not be negative"),
        ({"encoder": "none"}, "are of an encoder"),
    ],
)
def test_wrong_options_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_memory_counts_what_an_encoder_needs():
    shape = {"nodes": 1_000_000, "train": 10_000_000}
    plain = LinkOptions(storage="disk", partitions=16, buffer=4, raw=True)
    encoded = LinkOptions(storage="disk", partitions=16, buffer=4, raw=True, encoder="sage", fanout=(20, 10))
    less, more = (LinkMemory.of(options, **shape).main() for options in (plain, encoded))
    assert less.items() <= more.items()
    assert more["graph at hand"] >= 8 * shape["train"] / 16
    assert "encoded rows" not in more
    assert LinkMemory.of(LinkOptions(encoder="gcn"), **shape).main()["encoded rows"] == 4 * 100 * shape["nodes"]


def test_the_command_takes_an_encoder(tmp_path):
    dataset = "generate:community?nodes=120&edges=1500&classes=3&features=2&seed=2"
    quick = ["--dim", "4", "--epochs", "1", "--threads", "1", "--out", str(tmp_path / "run"), "--json"]
    made = CliRunner().invoke(app, ["train", "link", dataset, "--encoder", "sage", "--fanout", "3,2", *quick])
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert found["options"]["encoder"] == "sage"
    assert found["options"]["fanout"] == [3, 2]
    assert np.load(tmp_path / "run" / "encoded.npy").shape == (120, 4)
