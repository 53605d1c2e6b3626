"""Decoders: both ways of asking give the plain formula's scores and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.nn.links import distance_decoders

KINDS = {
    "dot": (hr.nn.Dot, {}),
    "distmult": (hr.nn.DistMult, {}),
    "complex": (hr.nn.ComplEx, {}),
    "rescal": (hr.nn.RESCAL, {}),
    "transe_l1": (hr.nn.TransE, {"norm": "l1"}),
    "transe_l2": (hr.nn.TransE, {"norm": "l2"}),
    "rotate_l1": (hr.nn.RotatE, {"norm": "l1"}),
    "rotate_l2": (hr.nn.RotatE, {"norm": "l2"}),
}


def plain(name, head, relation, tail):
    """One edge's score, as the papers write it, in double precision."""
    dim = len(head)
    as_complex = lambda row: torch.complex(row[: dim // 2], row[dim // 2 :])  # noqa: E731
    if name == "dot":
        return (head * tail).sum()
    if name == "distmult":
        return (head * relation * tail).sum()
    if name == "complex":
        return (as_complex(head) * as_complex(relation) * as_complex(tail).conj()).sum().real
    if name == "rescal":
        return head @ relation.view(dim, dim) @ tail
    if name.startswith("transe"):
        difference = (head + relation - tail).abs()
    else:
        difference = (as_complex(head) * torch.polar(torch.ones_like(relation), relation) - as_complex(tail)).abs()
    return -difference.sum() if name.endswith("l1") else -difference.square().sum().sqrt()


def made(name, dim=6, relations=3, reciprocal=False):
    kind, more = KINDS[name]
    torch.manual_seed(1)
    decoder = kind(dim, relations, reciprocal=reciprocal, **more).double()
    with torch.no_grad():
        decoder.relation.normal_()
    return decoder


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dim", [2, 46, 100])
def test_triples_equal_the_formula_with_gradients(name, dim):
    decoder = made(name, dim)
    head, tail = (torch.randn(5, dim, dtype=torch.float64, requires_grad=True) for _ in range(2))
    relation = torch.tensor([0, 2, 1, 2, 0])
    found = decoder.triples(head, relation, tail)
    expected = torch.stack([plain(name, head[i], decoder.relation[relation[i]], tail[i]) for i in range(5)])
    torch.testing.assert_close(found, expected)
    wanted = [head, tail] + ([decoder.relation] if name != "dot" else [])
    weights = torch.randn(5, dtype=torch.float64)
    for a, b in zip(
        torch.autograd.grad((found * weights).sum(), wanted), torch.autograd.grad((expected * weights).sum(), wanted), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("side", ["tail", "head"])
def test_shared_candidates_score_as_triples_do(name, side):
    decoder, (chunks, edges, candidates, dim) = made(name), (2, 3, 4, 6)
    rows = torch.randn(chunks, edges, dim, dtype=torch.float64, requires_grad=True)
    others = torch.randn(chunks, candidates, dim, dtype=torch.float64, requires_grad=True)
    relation = torch.randint(3, (chunks, edges))
    found = decoder.score(decoder.query(rows, relation, side=side), others)
    assert found.shape == (chunks, edges, candidates)
    left = rows.unsqueeze(2).expand(-1, -1, candidates, -1).reshape(-1, dim)
    right = others.unsqueeze(1).expand(-1, edges, -1, -1).reshape(-1, dim)
    head, tail = (left, right) if side == "tail" else (right, left)
    expected = decoder.triples(head, relation.repeat_interleave(candidates, 1).flatten(), tail).view_as(found)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    wanted = [rows, others] + ([decoder.relation] if name != "dot" else [])
    for a, b in zip(
        torch.autograd.grad((found * weights).sum(), wanted), torch.autograd.grad((expected * weights).sum(), wanted), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["transe_l1", "rotate_l1"])
def test_tiles_give_what_one_piece_gives(name, monkeypatch):
    decoder = made(name, 8)
    query, others = torch.randn(3, 5, 8, requires_grad=True), torch.randn(3, 7, 8, requires_grad=True)
    whole = decoder.score(query, others)
    expected = torch.autograd.grad(whole.square().sum(), [query, others])
    monkeypatch.setitem(distance_decoders._TILE, "cpu", 3 * 5 * 8 * 2)
    tiled = decoder.score(query, others)
    torch.testing.assert_close(tiled, whole)
    for a, b in zip(torch.autograd.grad(tiled.square().sum(), [query, others]), expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", KINDS)
def test_reciprocal_relations_have_parameters_of_their_own(name):
    decoder = made(name, reciprocal=True)
    assert decoder.relation.shape[0] == 6
    rows, relation = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    single = made(name, relations=6)
    with torch.no_grad():
        single.relation.copy_(decoder.relation)
    torch.testing.assert_close(decoder.query(rows, relation, side="head"), single.query(rows, relation + 3, side="tail"))
    torch.testing.assert_close(decoder.query(rows, relation, side="tail"), single.query(rows, relation, side="tail"))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("reciprocal", [False, True])
def test_both_questions_at_once_are_those_of_each_side(name, reciprocal):
    decoder = made(name, reciprocal=reciprocal)
    head, tail = (torch.randn(4, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    relation = torch.tensor([0, 1, 2, 0])
    to_tail, to_head = decoder.queries(head, relation, tail)
    assert torch.equal(to_tail, decoder.query(head, relation))
    assert torch.equal(to_head, decoder.query(tail, relation, side="head"))


@pytest.mark.parametrize("name", ["rotate_l1", "rotate_l2", "transe_l2", "transe_l1", "complex"])
def test_gradients_are_finite_where_rows_coincide(name):
    decoder = made(name)
    rows = torch.zeros(1, 2, 6, dtype=torch.float64, requires_grad=True)
    scores = decoder.score(rows, rows) + decoder.compare(rows, rows).unsqueeze(-1) + decoder.moduli(rows).sum()
    (grad,) = torch.autograd.grad(scores.sum(), rows)
    assert bool(grad.isfinite().all())


@settings(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(sorted(KINDS)),
    chunks=st.integers(0, 3),
    edges=st.integers(0, 3),
    candidates=st.integers(0, 4),
    half=st.integers(1, 4),
)
def test_any_shape_is_scored(name, chunks, edges, candidates, half):
    decoder = made(name, 2 * half)
    query = torch.randn(chunks, edges, 2 * half, dtype=torch.float64, requires_grad=True)
    others = torch.randn(chunks, candidates, 2 * half, dtype=torch.float64)
    scores = decoder.score(query, others)
    assert scores.shape == (chunks, edges, candidates)
    scores.sum().backward()
    assert query.grad.shape == query.shape


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="even"):
        hr.nn.ComplEx(5)
    with pytest.raises(ValueError, match="relations must be at least 1"):
        hr.nn.DistMult(4, 0)
    with pytest.raises(ValueError, match="norm must be"):
        hr.nn.TransE(4, norm="l3")
    with pytest.raises(ValueError, match="side must be"):
        hr.nn.DistMult(4).query(torch.zeros(1, 4), torch.tensor([0]), side="left")


def test_decoders_are_registered_by_their_names():
    assert list(hr.nn.DECODERS) == ["dot", "distmult", "complex", "rescal", "transe", "rotate"]
    assert all(kind.name == name for name, kind in hr.nn.DECODERS.items())
    assert [name for name, kind in hr.nn.DECODERS.items() if kind.by_product] == ["dot", "distmult", "complex", "rescal"]
    assert [name for name, kind in hr.nn.DECODERS.items() if kind.native_step] == ["dot", "distmult", "complex"]
    assert [name for name, kind in hr.nn.DECODERS.items() if kind.takes_norm] == ["transe", "rotate"]


def test_a_subclass_that_scores_otherwise_has_no_native_step_and_no_product():
    class Sharper(hr.nn.DistMult):
        def score(self, query, candidates):
            return 2 * super().score(query, candidates)

    class Shifted(hr.nn.DistMult):
        def join(self, rows, parameters, inverse):
            return rows + parameters

    assert (Sharper.native_step, Sharper.by_product) == (None, False)
    assert (Shifted.native_step, Shifted.by_product) == (None, True)
    assert (hr.nn.DistMult.native_step, hr.nn.DistMult.by_product) == ("distmult", True)


def test_names_of_decoders_are_unique(monkeypatch):
    monkeypatch.setattr("headrace.nn.links.decoders.DECODERS", dict(hr.nn.DECODERS))

    class Mine(hr.nn.DistMult):
        pass

    with pytest.raises(ValueError, match=r"'distmult' is the name of headrace.nn.links.decoders.DistMult already"):
        hr.nn.register_decoder(Mine)
    Mine.name = ""
    with pytest.raises(ValueError, match="Mine needs a name of its own"):
        hr.nn.register_decoder(Mine)
    Mine.name = "mine"
    assert hr.nn.register_decoder(Mine) is hr.nn.register_decoder(Mine)
    assert hr.train.LinkOptions(decoder="mine").decoder == "mine"
    with pytest.raises(ValueError, match=r"decoder must be one of auto, dot, .*, mine, not 'other': register your own"):
        hr.train.LinkOptions(decoder="other")
