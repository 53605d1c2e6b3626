"""Link prediction: the pipeline against a plain loop, storage against storage, and runs that stop and go on."""

import json

import pytest
import torch
import torch.nn.functional as F

import headrace as hr
from headrace.nn.links.link_losses import LOSSES, LOW, Penalty, loss_named
from headrace.store import Partitioned, TrainedArray
from headrace.train import LinkOptions, Run, Watcher, link
from headrace.train.links import recipe as link_recipe
from headrace.train.links.batches import EdgeBatches
from headrace.train.links.data import LinkData
from headrace.train.links.flow import draw
from headrace.train.links.flow.cpu import CPUFlow
from headrace.train.links.flow.row_optimizer import RowOptimizer
from headrace.train.links.link import make_decoder
from link_cases import Losses
from training_cases import StopAt, StoppedError, ctrl_c_at, lasting

SMALL = {"dim": 8, "epochs": 2, "batch_size": 64, "negatives": 12, "chunks": 4, "threads": 1, "lr": 0.1, "init": 0.1}


def small(**changes):
    return LinkOptions(**{**SMALL, **changes})


@pytest.fixture(scope="module")
def knowledge():
    """Relation r leads from node i to i + r + 1: every relation is a shift, which all decoders with relations can learn."""
    nodes, generator = 40, torch.Generator().manual_seed(0)
    head, relation = torch.arange(nodes).repeat(6), torch.arange(6).repeat_interleave(nodes)
    triples = torch.stack([head, relation, (head + relation + 1) % nodes], 1)[torch.randperm(240, generator=generator)].int()
    graph = hr.Graph.from_edges(triples[:, 0], triples[:, 2], nodes)
    extra = {"train": triples[:200], "val": triples[200:220], "test": triples[220:]}
    return hr.Dataset(graph, extra=extra, info={"num_relations": 6, "name": "shifts"})


def plain_loop(data, options):
    """The same training in plain PyTorch: a dense table, gradients by autograd, Adagrad, one batch after the other.

    Losses and optimizers are the library's own: each is checked against its formula in a test of its own.
    """
    edges, decoder = LinkData.of(data), make_decoder(LinkData.of(data), options)
    table = TrainedArray.create(edges.num_nodes, options.dim, init=(options.init, options.seed)).rows
    optimizer = RowOptimizer(options.optimizer)
    relation_optimizer = RowOptimizer("sgd" if options.optimizer == "sgd" else "adagrad")
    squares = torch.zeros(edges.num_nodes, optimizer.state_width(options.dim))
    relation_squares = torch.zeros(len(decoder.relation), relation_optimizer.state_width(decoder.relation_width))
    negatives = hr.sample.SharedNegatives(
        edges.num_nodes, amount=options.negatives, chunks=options.chunks, degree_fraction=options.degree_fraction, seed=options.seed
    )
    loss_of = loss_named(options.loss, margin=options.margin)
    deal = EdgeBatches(edges.train, edges.num_nodes, options)
    losses = []
    for epoch in range(options.epochs):
        for batch in deal.plan(epoch).batches():
            head, relation, tail = edges.train[batch.positions].long().unbind(1)
            chunks = next(k for k in range(options.chunks, 0, -1) if options.chunks % k == 0 and len(head) % k == 0)
            drawn = negatives.sample(head, tail, epoch=epoch, batch=batch.index, ranges=batch.ranges, chunks=chunks)
            table.requires_grad_()
            h, t, n = F.embedding(torch.cat([head, tail, drawn.flatten()]), table).split([len(head), len(tail), drawn.numel()])
            shape = (chunks, len(head) // chunks)
            query = torch.cat([question.view(*shape, -1) for question in decoder.queries(h, relation, t)], 1)
            same = torch.cat([tail.view(shape), head.view(shape)], 1)[:, :, None] == drawn[:, None]
            answer, candidates = torch.cat([t.view(*shape, -1), h.view(*shape, -1)], 1), n.view(chunks, -1, options.dim)
            if options.loss == "softmax":
                loss = hr.nn.shared_softmax_loss(query, answer, candidates, hidden=same.flatten().nonzero()[:, 0])
            else:
                positive = decoder.compare(query, answer)
                loss = loss_of(positive, decoder.score(query, candidates).masked_fill(same, LOW))
            if options.regularizer == "n3":
                of_relation = torch.cat([decoder.parameters_of(relation, side=side) for side in ("tail", "head")])
                loss = loss + Penalty(3, options.regularization)([decoder.moduli(x) for x in (h, t, of_relation)])
            grad, relation_grad = torch.autograd.grad(loss, [table, decoder.relation])
            losses.append(loss.item())
            with torch.no_grad():
                table = table.detach()
                delta, added = optimizer.deltas(grad, squares, lr=options.lr)
                table, squares = table + delta, squares + added
                delta, added = relation_optimizer.deltas(relation_grad, relation_squares, lr=options.lr)
                decoder.relation += delta
                relation_squares += added
    return table, decoder, losses


@pytest.mark.parametrize(
    "changes",
    [
        {"decoder": "distmult"},
        {"decoder": "distmult", "reciprocal": True, "batch_size": 50, "optimizer": "sgd", "lr": 1.0},
        {"decoder": "complex", "optimizer": "adagrad", "batch_size": 1, "chunks": 1, "epochs": 1},
        {"decoder": "complex", "reciprocal": True, "chunks": 7, "threads": 2},
        {"decoder": "distmult", "dim": 47, "batch_size": 150, "chunks": 1, "negatives": 70, "threads": 2},
        {"decoder": "rescal"},
        {"decoder": "complex", "reciprocal": True, "regularizer": "n3", "regularization": 0.01, "optimizer": "adagrad"},
        {"decoder": "transe", "norm": "l2", "loss": "self_adversarial", "margin": 2.0},
        {"decoder": "rotate", "loss": "margin", "negatives": 5, "chunks": 3, "degree_fraction": 0.0},
        {"decoder": "rescal", "loss": "logistic", "batch_size": 33},
    ],
)
def test_one_batch_in_flight_equals_a_plain_loop_to_the_bit(knowledge, changes):
    options, seen = small(**changes), Losses()
    result = link(knowledge, options, watcher=seen)
    table, decoder, losses = plain_loop(knowledge, options)
    assert seen.seen == losses
    assert torch.equal(result.rows.rows, table)
    assert torch.equal(result.decoder.relation, decoder.relation)


def test_all_nodes_as_candidates_is_a_dense_step(knowledge):
    options = small(decoder="complex", negatives=0, optimizer="adagrad", reciprocal=True, epochs=1)
    result = link(knowledge, options)
    edges, decoder = LinkData.of(knowledge), make_decoder(LinkData.of(knowledge), options)
    table, states = TrainedArray.create(40, 8, init=(0.1, 0)).rows, [torch.zeros(40, 8), torch.zeros_like(decoder.relation)]
    for batch in EdgeBatches(edges.train, 40, options).plan(0).batches():
        head, relation, tail = edges.train[batch.positions].long().unbind(1)
        table.requires_grad_()
        query = torch.cat([decoder.query(table[head], relation), decoder.query(table[tail], relation, side="head")])
        loss = F.cross_entropy(query @ table.T, torch.cat([tail, head]))
        grads = torch.autograd.grad(loss, [table, decoder.relation])
        table = table.detach()
        with torch.no_grad():
            for parameter, state, grad in zip([table, decoder.relation], states, grads, strict=True):
                state += grad.square()
                parameter -= 0.1 * grad / (state.sqrt() + 1e-10)
    torch.testing.assert_close(result.rows.rows, table)


@pytest.mark.parametrize("decoder", ["complex", "transe", "rotate", "rescal"])
def test_shifts_are_learned(knowledge, decoder):
    losses = {"transe": "margin", "rotate": "self_adversarial"}
    more = {"loss": losses[decoder], "margin": 2.0} if decoder in losses else {}
    options = small(decoder=decoder, dim=16, epochs=60, lr=0.2, negatives=20, reciprocal=True, **more)
    result = link(knowledge, options)
    chance = sum(1 / k for k in range(1, 41)) / 40
    assert result.test["mrr"] > 2 * chance, result.test
    assert result.test["full_filtered"]["mrr"] == result.test["mrr"]
    assert result.test["ranking"] == "full"


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_falls(knowledge, name):
    seen = Losses()
    link(
        knowledge,
        small(decoder="complex", loss=name, epochs=6, margin=1.0 if "a" in name[1:] and name != "softmax" else None),
        watcher=seen,
    )
    assert seen.epochs[-1]["loss"] < seen.epochs[0]["loss"]


def test_batches_in_flight_are_bounded_and_still_learn(knowledge):
    seen = Losses()
    result = link(knowledge, small(decoder="complex", batch_size=10, staleness=3, epochs=5), watcher=seen)
    assert 1 <= max(e["in_flight"] for e in seen.epochs) <= 4
    assert seen.epochs[-1]["loss"] < seen.epochs[0]["loss"]
    assert {s["name"] for s in seen.epochs[0]["stages"]} == {"load", "compute", "consumer"}
    assert bool(result.rows.rows.isfinite().all())


@pytest.mark.parametrize(
    "changes",
    [
        {"decoder": "dot"},
        {"decoder": "distmult"},
        {"decoder": "complex", "row_type": "bf16"},
        {"decoder": "transe", "loss": "margin"},
        {"decoder": "complex", "storage": "disk", "partitions": 8, "buffer": 4},
        {
            "decoder": "distmult",
            "storage": "disk",
            "partitions": 8,
            "buffer": 4,
            "row_type": "bf16",
            "regularizer": "n3",
            "regularization": 0.01,
        },
        {"decoder": "distmult", "encoder": "sage", "fanout": (4, 3)},
        {"decoder": "distmult", "encoder": "gcn", "fanout": (4,), "storage": "disk", "partitions": 8, "buffer": 4},
    ],
    ids=str,
)
def test_on_a_cpu_no_row_is_stale_however_many_batches_are_in_flight(knowledge, tmp_path, changes):
    exact, ahead = (
        link(knowledge, small(**changes, batch_size=10, staleness=staleness, threads=2), out=tmp_path / str(staleness))
        for staleness in (0, 5)
    )
    assert exact.test == ahead.test
    assert torch.equal(exact.decoder.relation, ahead.decoder.relation)
    if exact.rows is not None:
        assert torch.equal(exact.rows.rows, ahead.rows.rows)
        assert torch.equal(exact.rows.state, ahead.rows.state)


def test_where_ranking_would_take_long_some_edges_are_ranked_and_that_is_said(knowledge, monkeypatch):
    class Notes(Watcher):
        def __init__(self):
            self.said = []

        def note(self, text):
            self.said.append(text)

    monkeypatch.setattr(link_recipe, "_LEAST", 3)
    monkeypatch.setitem(link_recipe._SCORES, "cpu", 2 * 40 * 8)  # eight edges
    notes = Notes()
    some = link(knowledge, small(validate_every=1), watcher=notes).test
    assert some["edges"] == 7  # every third of twenty
    ranked = [text for text in notes.said if "edges are ranked" in text]
    assert [text.split(",")[0] for text in ranked] == [f"7 of 20 {what} edges are ranked" for what in ("validation", "test")]
    assert "--test-edges 0" in ranked[1]
    assert link(knowledge, small(test_edges=0)).test["edges"] == 20
    assert link(knowledge, small(test_edges=5)).test["edges"] == 5
    assert link(knowledge, small(ranking="sampled", candidates=10)).test["edges"] == 20
    with pytest.raises(ValueError, match="test_edges must be at least -1"):
        small(test_edges=-2)


def test_known_edges_can_be_left_out_of_negatives(knowledge):
    result = link(knowledge, small(decoder="distmult", filter_negatives=True, negative_weights="degree", degree_fraction=0.2))
    assert bool(result.rows.rows.isfinite().all())


def test_negatives_are_hidden_the_same_way_however_they_are_found(knowledge, monkeypatch):
    compared = link(knowledge, small(decoder="distmult", negatives=30))
    monkeypatch.setattr(draw, "_FEW", 0)
    searched = link(knowledge, small(decoder="distmult", negatives=30))
    assert torch.equal(compared.rows.rows, searched.rows.rows)


def test_graphs_without_relations_are_split_by_pairs():
    data = hr.generate.community(nodes=200, edges=3000, classes=4, features=2, seed=1)
    edges = LinkData.of(data, held_out=0.1, seed=3)
    assert len(edges.train) + len(edges.val) + len(edges.test) == data.num_edges
    assert abs(len(edges.val) / data.num_edges - 0.1) < 0.03
    pairs = [{tuple(sorted(p)) for p in part[:, ::2].tolist()} for part in (edges.train, edges.val, edges.test)]
    assert not (pairs[0] & pairs[1])
    assert not (pairs[0] & pairs[2])
    assert not (pairs[1] & pairs[2])
    assert not torch.equal(edges.val, LinkData.of(data, held_out=0.1, seed=4).val)
    result = link(data, small(epochs=3, dim=16, ranking="both", candidates=50))
    assert result.decoder.name == "dot"
    assert {"full_filtered", "full_raw", "sampled_filtered", "sampled_raw"} <= set(result.test)
    assert result.test["mrr"] == result.test["full_filtered"]["mrr"]


ORDERED = {"decoder": "complex", "partitions": 8, "buffer": 4, "epochs": 3, "batch_size": 7}


@pytest.mark.parametrize(("order", "row_type"), [("comet", "fp32"), ("best", "fp32"), ("comet", "bf16")])
def test_disk_run_equals_memory_run_for_the_same_order(knowledge, tmp_path, order, row_type):
    in_memory = link(knowledge, small(**ORDERED, order=order, row_type=row_type), out=tmp_path / "memory")
    on_disk = link(knowledge, small(**ORDERED, order=order, row_type=row_type, storage="disk"), out=tmp_path / "disk")
    with Partitioned.open(tmp_path / "disk" / "rows", capacity=4) as rows:
        table = torch.cat([piece for _, piece in rows.scan()])
    assert torch.equal(table, in_memory.rows.rows.float())
    assert torch.equal(on_disk.decoder.relation, in_memory.decoder.relation)
    assert on_disk.test == in_memory.test
    assert "partitions that are resident" in Run(tmp_path / "disk").header["negatives_from"]
    loads = sum(line["disk"]["loads"] for line in Run(tmp_path / "disk").metrics("epoch"))
    assert loads == on_disk.disk["loads"]
    swaps = [EdgeBatches(LinkData.of(knowledge).train, 40, small(**ORDERED, order=order)).plan(e).order.swaps for e in range(3)]
    assert loads == 4 + sum(swaps)  # the buffer is kept from one epoch to the next


def test_disk_run_with_batches_in_flight_ends_with_its_last_rows(knowledge, tmp_path):
    result = link(knowledge, small(**ORDERED, storage="disk", staleness=5, validate_every=1), out=tmp_path / "run")
    assert result.test["mrr"] > 0
    assert result.val_mrr == Run(tmp_path / "run").metrics("epoch")[-1]["val_mrr"]
    assert Run(tmp_path / "run").metrics("end")[0]["best_epoch"] == 2


def finished(place):
    run = Run(place)
    return lasting([{k: v for k, v in line.items() if k not in ("eval_seconds", "disk")} for line in run.metrics()]), run.result()[
        "test"
    ]


@pytest.mark.parametrize("changes", [{"row_type": "bf16"}, {"partitions": 4, "buffer": 2, "order": "beta", "storage": "disk"}])
@pytest.mark.parametrize("stop", [ctrl_c_at, StopAt])
def test_a_stopped_run_goes_on_to_the_same_bits(knowledge, tmp_path, changes, stop):
    options = small(decoder="complex", validate_every=1, log_every=1, checkpoint_seconds=0.0 if stop is StopAt else 1e9, **changes)
    link(knowledge, options, out=tmp_path / "whole")
    steps = len(Run(tmp_path / "whole").metrics("step"))
    for kind, number in (("step", 2), ("step", steps - 1), ("validating", 2), ("epoch", 1), ("begin", 1)):
        place = tmp_path / f"{kind}{number}"
        with pytest.raises((KeyboardInterrupt, StoppedError)):
            link(knowledge, options, out=place, watcher=stop(kind, number))
        result = link(knowledge, options, out=place, resume=True)
        assert finished(place) == finished(tmp_path / "whole")
        assert json.loads(json.dumps(result.test)) == Run(place).result()["test"]
        if result.disk is not None:  # no epoch is counted twice
            assert result.disk["edge_bytes"] == Run(tmp_path / "whole").result()["disk"]["edge_bytes"]
    assert link(knowledge, options, out=tmp_path / "whole", resume=True).test == finished(tmp_path / "whole")[1]


def test_ctrl_c_with_batches_in_flight_loses_none(knowledge, tmp_path):
    options = small(**{**ORDERED, "log_every": 1}, storage="disk", staleness=3)
    with pytest.raises(KeyboardInterrupt):
        link(knowledge, options, out=tmp_path / "run", watcher=ctrl_c_at("step", 20))
    begun = len(Run(tmp_path / "run").metrics("step"))
    assert 20 <= begun <= 20 + 4 + 1
    link(knowledge, options, out=tmp_path / "run", resume=True)
    steps = [line["step"] for line in Run(tmp_path / "run").metrics("step")]
    plan = EdgeBatches(LinkData.of(knowledge).train, 40, options)
    assert steps == list(range(1, 1 + sum(plan.plan(epoch).num_batches for epoch in range(3))))


@pytest.mark.parametrize("staleness", [0, 4])
def test_an_error_in_flight_surfaces(knowledge, tmp_path, monkeypatch, staleness):
    compute, count = CPUFlow.compute, iter(range(100))

    def failing(self, batch):
        if next(count) == 12:
            raise RuntimeError("the lights went out")
        return compute(self, batch)

    monkeypatch.setattr(CPUFlow, "compute", failing)
    with pytest.raises(RuntimeError, match="the lights went out"):
        link(knowledge, small(**ORDERED, storage="disk", staleness=staleness), out=tmp_path / "run")


def test_the_best_epoch_is_kept(knowledge):
    seen = Losses()
    result = link(knowledge, small(decoder="distmult", epochs=40, lr=1.0, validate_every=1, patience=3), watcher=seen)
    scores = [e["val_mrr"] for e in seen.epochs]
    assert result.val_mrr == max(scores)
    assert len(scores) == 40 or scores.index(max(scores)) == len(scores) - 4
    again = link(knowledge, small(decoder="distmult", epochs=scores.index(max(scores)) + 1, lr=1.0))
    assert torch.equal(again.rows.rows, result.rows.rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"staleness": -1}, "staleness must be at least 0"),
        ({"decoder": "tucker"}, "decoder must be one of auto, dot"),
        ({"regularizer": "n3"}, "give both"),
        ({"storage": "disk"}, "needs partitions"),
        ({"partitions": 4}, "give both"),
        ({"partitions": 10**6, "buffer": 4}, "at most 1024"),
        ({"partitions": 4, "buffer": 1}, "capacity must be from 2"),
        ({"negatives": 0, "staleness": 1}, "staleness must be 0"),
        ({"negatives": 0, "row_type": "bf16"}, "row_type must be fp32"),
        ({"negatives": 0, "loss": "margin"}, "does not go with loss margin"),
        ({"held_out": 0.6}, "held_out must be from 0 to 0.45"),
    ],
)
def test_wrong_options_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        LinkOptions(**changes)


def test_wrong_data_is_refused(knowledge, tmp_path):
    empty = hr.Dataset(hr.Graph.from_edges([], [], 3))
    with pytest.raises(ValueError, match="no edges to learn from"):
        link(empty)
    wrong = hr.Dataset(knowledge.graph, extra={"train": torch.tensor([[0, 0, 99]])}, info={"num_relations": 1})
    with pytest.raises(ValueError, match="tails of split 'train' are from 99 to 99"):
        link(wrong)
    with pytest.raises(ValueError, match="pass out"):
        link(knowledge, small(storage="disk", partitions=4, buffer=2))
    with pytest.raises(FloatingPointError, match="lower lr"):
        link(knowledge, small(decoder="complex", optimizer="sgd", lr=1e30, epochs=4))
    link(knowledge, small(decoder="complex", epochs=1), out=tmp_path / "run")
    with pytest.raises(ValueError, match="was begun with dim 8, not 10"):
        link(knowledge, small(decoder="complex", epochs=1, dim=10), out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("storage", [{}, {"storage": "disk", "partitions": 4, "buffer": 2}, {"encoder": "sage", "fanout": (3,)}])
def test_scores_that_overflow_are_an_error_not_a_perfect_rank(knowledge, tmp_path, storage):
    # Loss and rows are finite: only products of three of them are not.
    options = small(decoder="distmult", epochs=1, batch_size=1000, optimizer="sgd", lr=1e30, init=1.0, **storage)
    with pytest.raises(FloatingPointError, match=r"lower lr \(1e\+30\)"):
        link(knowledge, options, out=tmp_path / "run")
    assert Run(tmp_path / "run").result() is None


def test_rows_that_are_lost_are_found_before_they_are_ranked(knowledge, monkeypatch):
    class Lost(Watcher):
        def step(self, event, clock):
            recipes[0].flow.rows.rows[3] = torch.nan

    recipes = []
    monkeypatch.setattr(link_recipe.LinkRecipe, "validate", lambda self, progress: pytest.fail("lost rows were ranked"))
    before = link_recipe.LinkRecipe.__init__
    monkeypatch.setattr(
        link_recipe.LinkRecipe, "__init__", lambda self, *some, **more: recipes.append(self) or before(self, *some, **more)
    )
    with pytest.raises(FloatingPointError, match=r"the weights \(rows\) are no longer finite at epoch 0"):
        link(knowledge, small(batch_size=1000, epochs=1), watcher=Lost())
