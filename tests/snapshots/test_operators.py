"""Hoisted, stacked and kept sums give what the cell gives snapshot by snapshot, gradients too; and are as few as they say."""

import pytest
import torch

import headrace as hr
from cell_cases import CELLS, GROUPS, sequence
from headrace.nn.cells import Cell
from headrace.nn.neighbor_sum import counting, neighbor_sum
from headrace.snapshots import Group, KeptSums, Operators, check_cell


def outcome(operators, cell):
    rows = operators.rows(GROUPS)
    torch.manual_seed(5)
    gradients = torch.autograd.grad((rows * torch.randn_like(rows)).sum(), list(cell.parameters()), allow_unused=True)
    return rows, gradients


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("kind", ["one graph", "changing graphs", "changing nodes"])
def test_hoisted_equals_snapshot_by_snapshot(name, kind):
    cell, snapshots = CELLS[name]().double(), sequence(kind)
    snapshots.x = [part.double() for part in snapshots.x]
    expected = outcome(Operators(cell, snapshots, hoist=False), cell)
    for kept in (None, KeptSums(), KeptSums(budget=500)):
        operators = Operators(cell, snapshots, hoist=True, kept=kept)
        for _ in range(2):
            rows, gradients = outcome(operators, cell)
            torch.testing.assert_close(rows, expected[0], rtol=1e-7, atol=1e-9)
            for a, b in zip(gradients, expected[1], strict=True):
                assert (a is None) == (b is None)
                if a is not None:
                    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    assert any(word in " ".join(operators.explain()) for word in ("kept", "reads state"))


@pytest.mark.parametrize("name", CELLS)
def test_cells_do_what_they_declare(name):
    check_cell(CELLS[name]())


def test_tgcn_of_twelve_snapshots_sums_twelve_times_once_or_never():
    torch.manual_seed(0)
    graphs = [torch.randint(0, 20, (2, 40)).tolist() for _ in range(12)]
    snapshots, cell = hr.Snapshots(graphs, 20, x=torch.randn(12, 20, 4)), hr.nn.TGCN(4, 8)
    counts = {}
    for name, operators in {
        "plain": Operators(cell, snapshots, hoist=False),  # 36 with a convolution for each gate
        "hoisted": Operators(cell, snapshots),
        "kept": Operators(cell, snapshots, kept=KeptSums()),
    }.items():
        operators.rows([Group(0, 12)])
        with counting() as count:
            operators.rows([Group(0, 12)])
        counts[name] = count.sums
    counts["hoisted"] = _fresh_count(cell, snapshots)
    assert counts == {"plain": 12, "hoisted": 1, "kept": 0}


def _fresh_count(cell, snapshots):
    with counting() as count:
        Operators(cell, snapshots).rows([Group(0, 12)])
    return count.sums


class Misdeclared(hr.nn.TGCN):
    """Says that its sum reads x alone, and sums the state too."""

    def step(self, ahead, where, state):
        (hidden,) = state
        return super().step(ahead, where, (neighbor_sum("gcn", hidden, where),))


class Hasty(hr.nn.TGCN):
    """Forgets in its parts what it does as a whole."""

    def forward(self, x, where, state=None):
        return tuple(part + 1 for part in super().forward(x, where, state))


@pytest.mark.parametrize(("kind", "says"), [(Misdeclared, "declares 0 sums that read state"), (Hasty, "other rows by its parts")])
def test_a_cell_that_declares_wrongly_is_caught(kind, says):
    assert issubclass(kind, Cell)
    with pytest.raises(ValueError, match=says):
        check_cell(kind(4, 8))


def test_a_budget_too_small_is_told():
    kept = KeptSums(budget=8)
    Operators(hr.nn.TGCN(4, 8), sequence("one graph"), kept=kept).rows(GROUPS)
    assert "no sums kept: one takes more than the budget of 8 bytes" in kept.reason
