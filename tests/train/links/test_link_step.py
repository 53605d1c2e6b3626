"""The native step of a batch against double precision, and its bits against autograd."""

import pytest
import torch
import torch.nn.functional as F

import headrace as hr
from headrace.train.links.flow.native_step import NativeStep, StepEdges
from headrace.train.links.flow.row_optimizer import RowOptimizer

KINDS = {"dot": hr.nn.Dot, "distmult": hr.nn.DistMult, "complex": hr.nn.ComplEx}


class Case:
    """A batch with repeated nodes and relations."""

    def __init__(self, kind, *, edges, chunks, negatives, width, reciprocal=False, rows=9, relations=3, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.decoder = KINDS[kind](width, relations, reciprocal=reciprocal)
        self.decoder.reset_parameters(0.5, generator)
        self.rows = torch.randn(rows, width, generator=generator) / max(width, 4) ** 0.25
        self.place = torch.randint(0, rows, (2 * edges + chunks * negatives,), generator=generator)
        self.relation = torch.randint(0, relations, (edges,), generator=generator)
        self.edges, self.chunks, self.negatives, self.width = edges, chunks, negatives, width

    def gradients(self, dtype=torch.float32):
        """By autograd: the loss, and gradients of rows and relations (None where there are none)."""
        decoder = KINDS[self.decoder.name](self.width, self.decoder.relations, reciprocal=self.decoder.reciprocal).to(dtype)
        decoder.load_state_dict(self.decoder.state_dict())
        table = self.rows.to(dtype).requires_grad_()
        drawn = self.chunks * self.negatives
        head, tail, others = F.embedding(self.place, table).split([self.edges, self.edges, drawn])
        shape = (self.chunks, self.edges // self.chunks, self.width)
        query = torch.cat([question.view(shape) for question in decoder.queries(head, self.relation, tail)], 1)
        answer = torch.cat([tail.view(shape), head.view(shape)], 1)
        ends = [self.place[: self.edges], self.place[self.edges : 2 * self.edges]]
        asked = torch.cat([end.view(self.chunks, -1) for end in ends[::-1]], 1)
        same = asked[:, :, None] == self.place[2 * self.edges :].view(self.chunks, 1, -1)
        candidates = others.view(self.chunks, self.negatives, self.width)
        loss = hr.nn.shared_softmax_loss(query, answer, candidates, hidden=same.flatten().nonzero()[:, 0])
        wanted = [table, decoder.relation] if decoder.relation_width else [table]
        grads = torch.autograd.grad(loss, wanted)
        return loss.detach(), grads[0], grads[1] if decoder.relation_width else None

    def step(self, optimizer="sgd", *, lr=1.0, threads=1, state=None):
        rules = RowOptimizer(optimizer), RowOptimizer("sgd" if optimizer == "sgd" else "adagrad")
        state = torch.zeros(len(self.rows), rules[0].state_width(self.width)) if state is None else state
        squares = torch.zeros(len(self.decoder.relation), rules[1].state_width(self.decoder.relation_width))
        edges = StepEdges(self.place, self.relation, squares, None, self.chunks, lr)
        return *NativeStep(self.decoder, *rules, threads=threads).deltas(self.rows, state, edges), squares


SHAPES = [
    {"edges": 1, "chunks": 1, "negatives": 1, "width": 2},
    {"edges": 6, "chunks": 3, "negatives": 5, "width": 100},
    {"edges": 6, "chunks": 6, "negatives": 4, "width": 48},
    {"edges": 400, "chunks": 1, "negatives": 30, "width": 20, "rows": 60},
    {"edges": 20, "chunks": 2, "negatives": 0, "width": 6},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_step_has_the_bits_of_autograd_and_the_gradients_of_double_precision(kind, reciprocal, shape):
    case = Case(kind, **shape, reciprocal=reciprocal)
    loss, of_rows, of_relations = case.gradients()
    exact = case.gradients(torch.float64)
    before = case.decoder.relation.detach().clone()
    found, delta, _, _ = case.step()
    assert torch.tensor(found) == loss
    assert torch.equal(delta, -of_rows)
    torch.testing.assert_close(loss.double(), exact[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(of_rows.double(), exact[1], rtol=1e-4, atol=1e-6)
    if of_relations is not None:
        assert torch.equal(case.decoder.relation.detach(), before - of_relations)
        torch.testing.assert_close(of_relations.double(), exact[2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("width", [1, 47])
def test_odd_widths(width):
    case = Case("distmult", edges=8, chunks=2, negatives=3, width=width)
    _, of_rows, _ = case.gradients()
    assert torch.equal(case.step()[1], -of_rows)


@pytest.mark.parametrize("optimizer", ["row_adagrad", "adagrad"])
def test_deltas_are_those_of_the_row_optimizer_and_threads_do_not_matter(optimizer):
    shape = {"edges": 600, "chunks": 6, "negatives": 40, "width": 64, "rows": 300, "relations": 90}
    state = torch.rand(300, RowOptimizer(optimizer).state_width(64))
    results = []
    for threads in (1, 2, 4):
        case = Case("complex", **shape, reciprocal=True)
        before, (_, of_rows, of_relations) = case.decoder.relation.detach().clone(), case.gradients()
        loss, delta, squares, relation_squares = case.step(optimizer, lr=0.1, threads=threads, state=state)
        wanted = RowOptimizer(optimizer).deltas(of_rows, state, lr=0.1)
        assert torch.equal(delta, wanted[0])
        assert torch.equal(squares, wanted[1])
        of_each = RowOptimizer("adagrad").deltas(of_relations, torch.zeros_like(before), lr=0.1)
        assert torch.equal(case.decoder.relation.detach(), before + of_each[0])
        assert torch.equal(relation_squares, of_each[1])
        results.append((loss, delta, squares))
    assert all(r[0] == results[0][0] and torch.equal(r[1], results[0][1]) for r in results)


def test_rows_in_place_end_as_rows_with_deltas_added():
    case, rule = Case("distmult", edges=50, chunks=5, negatives=8, width=10, rows=20), RowOptimizer("row_adagrad")
    state, relation = torch.rand(20, 1), case.decoder.relation.detach().clone()
    loss, delta, squares, _ = case.step("row_adagrad", lr=0.1, state=state)
    ids = torch.randperm(70)[:20]
    table, states = torch.randn(70, 10), torch.rand(70, 1)
    table[ids], states[ids] = case.rows, state
    expected = table.clone(), states.clone()
    expected[0][ids] += delta
    expected[1][ids] += squares
    with torch.no_grad():
        case.decoder.relation.copy_(relation)
    step = NativeStep(case.decoder, rule, RowOptimizer("adagrad"), threads=2)
    edges = StepEdges(case.place, case.relation, torch.zeros_like(relation), None, 5, 0.1)
    assert step.update_(table, states, ids, edges) == loss
    assert torch.equal(table, expected[0])
    assert torch.equal(states, expected[1])


def test_a_workspace_serves_batches_of_any_shape_one_after_the_other():
    rules = RowOptimizer("sgd"), RowOptimizer("sgd")
    decoder = Case("distmult", edges=1, chunks=1, negatives=1, width=12).decoder
    step = NativeStep(decoder, *rules, threads=2)
    for number, (edges, chunks, negatives) in enumerate([(900, 3, 40), (4, 2, 3), (700, 1, 90), (900, 3, 40)]):
        case = Case("distmult", edges=edges, chunks=chunks, negatives=negatives, width=12, rows=50, seed=number)
        case.decoder.load_state_dict(decoder.state_dict())
        _, of_rows, _ = case.gradients()
        given = StepEdges(case.place, case.relation, torch.zeros(3, 0), None, chunks, 1.0)
        assert torch.equal(step.deltas(case.rows, torch.zeros(50, 0), given)[1], -of_rows)


def test_wrong_places_relations_and_ids_are_refused():
    def failing(**changes):
        case = Case("distmult", edges=4, chunks=2, negatives=2, width=4)
        for name, value in changes.items():
            setattr(case, name, value)
        return case

    for changes, message in (
        ({"place": torch.full((12,), 9)}, "place out of range"),
        ({"place": torch.zeros(11, dtype=torch.int64)}, "as many negatives for every chunk"),
        ({"relation": torch.full((4,), 3)}, "relation out of range"),
        ({"chunks": 3}, "chunks must divide"),
    ):
        with pytest.raises(ValueError, match=message):
            failing(**changes).step()
    case, rule = Case("dot", edges=4, chunks=2, negatives=2, width=4), RowOptimizer("sgd")
    edges = StepEdges(case.place, case.relation, torch.zeros(3, 0), None, 2, 1.0)
    with pytest.raises(ValueError, match="id out of range"):
        NativeStep(case.decoder, rule, rule, threads=1).update_(case.rows, torch.zeros(9, 0), torch.arange(1, 10), edges)
