"""Where the edges of a part's rows are in the whole graph, in pieces of any size."""

import pytest
import torch

from headrace.cluster.parts import own_edges
from headrace.cluster.parts.own_edges import edge_positions, own_indptr


@pytest.mark.parametrize("rows", [1, 3, 1000])
@pytest.mark.parametrize("most", [1, 4, 1000])
@pytest.mark.parametrize("degrees", [[3, 0, 2, 9, 0, 0, 1], [0, 0, 0], [50], [0]])
def test_pieces_together_are_the_rows_in_order(rows, most, degrees, monkeypatch):
    monkeypatch.setattr(own_edges, "_ROWS", rows)
    monkeypatch.setattr(own_edges, "_EDGES", most)
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    for ids in ([*range(len(degrees))], [*reversed(range(len(degrees)))], [0], []):
        own = own_indptr(indptr, torch.tensor(ids, dtype=torch.int64))
        expected = [place for node in ids for place in range(int(indptr[node]), int(indptr[node + 1]))]
        pieces = list(edge_positions(indptr, torch.tensor(ids, dtype=torch.int64), own))
        assert own.tolist() == [sum(degrees[node] for node in ids[:count]) for count in range(len(ids) + 1)]
        assert [place for piece in pieces for place in piece.tolist()] == expected
        assert all(0 < len(piece) <= most for piece in pieces)
