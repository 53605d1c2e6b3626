"""Byte formulas of strategies that split groups, against counts by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.snapshots.traffic import boundary_bytes, halo_bytes, halo_rows

NODES = 7
EDGES = st.lists(st.tuples(st.integers(0, NODES - 1), st.integers(0, NODES - 1)), max_size=25)


@settings(max_examples=80, deadline=None)
@given(EDGES, st.lists(st.integers(0, 2), min_size=NODES, max_size=NODES))
def test_a_row_goes_once_to_every_rank_that_has_a_target_of_it(edges, owner):
    graph = hr.Graph.from_edges([src for src, _ in edges], [dst for _, dst in edges], NODES)
    moved = {(owner[src], owner[dst], src) for src, dst in edges if owner[src] != owner[dst]}
    sent = halo_rows(graph, torch.tensor(owner), 3)
    assert sent == [[sum((a, b) == (one, to) for a, b, _ in moved) for to in range(3)] for one in range(3)]
    for rank in range(3):
        there = sum(one == rank for one, _, _ in moved) * 16 * 4  # rows of 16 floats
        back = sum(to == rank for _, to, _ in moved) * 16 * 4  # their gradients
        assert halo_bytes(sent, rank, 16) == (there, back)


@pytest.mark.parametrize(("nodes", "widths", "bytes_"), [(207, [32], 207 * 32 * 4), (20_000, [64, 64], 20_000 * 2 * 64 * 4)])
def test_a_boundary_takes_a_float_of_every_node_and_column(nodes, widths, bytes_):
    assert boundary_bytes(nodes, widths) == bytes_
