"""Attention whose rows and columns are computed apart, each from what is there, against `attend` and its gradient."""

import pytest
import torch

from headrace.kernels import Scores, Whole, attend, attend_pairs, attend_rows, column_gradients, row_gradients

HEADS, CHANNELS = 3, 5


def graph_of(nodes=40, edges=300):
    """Node 0 has no entry of its own; there are loops and repeated entries."""
    rows, columns = torch.randint(1, nodes, (edges,)).sort().values, torch.randint(0, nodes, (edges,))
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(rows, minlength=nodes).cumsum(0)]), columns.to(torch.int32)


def leaves_of(kind, nodes, dtype):
    shapes = {"x": (nodes, HEADS, CHANNELS), "target": (nodes, HEADS)}
    shapes |= {"source": (nodes, HEADS)} if kind == "gat" else {"target": shapes["x"], "attention": (HEADS, CHANNELS)}
    return {name: torch.randn(shape, dtype=dtype).requires_grad_() for name, shape in shapes.items()}


def columns_of(indptr, indices, chosen):
    """The entries of these columns with one loop each, and where they stand in the whole."""
    rows = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
    entries, positions, begins = [], [], [0]
    for column in chosen.tolist():
        at = ((indices == column) & (rows != column)).nonzero().flatten()
        entries += [*rows[at].tolist(), column]
        positions += [*at.tolist(), len(indices) + column]
        begins.append(len(entries))
    return torch.tensor(begins), torch.tensor(entries, dtype=torch.int32), torch.tensor(positions)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["gat", "gatv2"])
def test_passes_apart_give_the_gradients_of_attend(kind, dtype, dropout):
    torch.manual_seed(0)
    indptr, indices = graph_of()
    leaves, nodes = leaves_of(kind, 40, dtype), 40
    how = {"slope": 0.2, "dropout": dropout, "seed": 7}
    wanted = (attend if kind == "gat" else attend_pairs)(indptr=indptr, indices=indices, self_loops=True, **leaves, **how)
    grad = torch.randn_like(wanted)
    grad[3] = 0
    gradients = dict(zip(leaves, torch.autograd.grad(wanted, list(leaves.values()), grad), strict=True))
    fixed = {name: leaf.detach() for name, leaf in leaves.items()}
    x = fixed.pop("x")

    whole = Whole.of(indptr, torch.arange(nodes))
    scores = Scores(self_loops=True, **fixed, **how).placed(indptr, whole)
    out, peak = attend_rows(x, indptr, indices, scores)
    assert torch.equal(out, wanted)
    target, attention = row_gradients(grad, out, peak, x, indptr, indices, scores)
    assert torch.equal(target, gradients["target"])
    assert attention is None or torch.equal(attention, gradients["attention"])

    chosen = torch.tensor([5, 0, 3, 39, 17])
    t_indptr, t_indices, positions = columns_of(indptr, indices, chosen)
    source = {"source": fixed["source"][chosen]} if kind == "gat" else {}
    scores = Scores(**{**fixed, **source}, **how)
    delta = (grad * out).sum(-1)
    to_x, to_source = column_gradients(grad, delta, peak, x[chosen], t_indptr, t_indices, scores, positions=positions)
    close = {"rtol": 0, "atol": 1e-13 if dtype == torch.float64 else 3e-6}
    torch.testing.assert_close(to_x, gradients["x"][chosen], **close)
    if kind == "gat":
        torch.testing.assert_close(to_source, gradients["source"][chosen], **close)


def test_no_columns_give_no_gradients():
    x = torch.empty(0, HEADS, CHANNELS)
    scores = Scores(source=torch.empty(0, HEADS), target=torch.empty(0, HEADS))
    none = torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int32)
    to_x, to_source = column_gradients(x, torch.empty(0, HEADS), torch.empty(0, 2, HEADS), x, *none, scores)
    assert to_x.shape == x.shape
    assert to_source.shape == (0, HEADS)


def test_columns_are_refused_that_cannot_be_right():
    x, entries = torch.zeros(1, HEADS, CHANNELS), (torch.tensor([0, 1]), torch.zeros(1, dtype=torch.int32))
    facts = torch.zeros(1, HEADS), torch.zeros(1, 2, HEADS)
    known = {"source": torch.zeros(1, HEADS), "target": torch.zeros(1, HEADS)}
    with pytest.raises(ValueError, match="pass positions"):
        column_gradients(x, *facts, x, *entries, Scores(**known, dropout=0.5))
    with pytest.raises(ValueError, match="loops among their entries"):
        column_gradients(x, *facts, x, *entries, Scores(**known, self_loops=True))
    with pytest.raises(ValueError, match="float32 or float64"):
        column_gradients(x.bfloat16(), *facts, x.bfloat16(), *entries, Scores(**known))
