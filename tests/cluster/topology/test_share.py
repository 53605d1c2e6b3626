"""`Share`, `Asked` and messages: what a rank answers from its own rows."""

import numpy as np
import pytest
import torch

from headrace.cluster.topology import share as share_module
from headrace.cluster.topology.asked import Asked
from headrace.cluster.topology.message import HEADER_BYTES, packed, unpacked
from headrace.cluster.topology.share import Share
from headrace.store import BufferPool, TableOwners, hash_owners
from topology_cases import awkward_graph, share_of


@pytest.mark.parametrize("piece", [1, 7, 1 << 22])
def test_degrees_leave_out_loops_whatever_is_looked_at_together(monkeypatch, piece):
    monkeypatch.setattr(share_module, "_PIECE", piece)
    graph = awkward_graph()
    for owners in (hash_owners(300, 3), TableOwners(torch.zeros(300, dtype=torch.int64), 2)):
        for rank in range(owners.ranks):
            share = Share(*share_of(graph, owners, rank), owners, rank)
            assert share.degrees.dtype == graph.indices.dtype
            assert torch.equal(share.degrees.long(), graph.degrees(loops=False)[owners.ids_of(rank)])


def test_rows_of_an_owner_stay_in_the_order_of_the_nodes():
    owners = TableOwners(torch.tensor([1, 0, 1, 2, 0]), 3)
    asked = Asked.of(torch.tensor([2, 4, 0, 1, 2]), owners, torch.int32)
    assert asked.sizes == (2, 3, 0)
    assert [rows.tolist() for rows in asked.by_owner()] == [[1, 0], [1, 0, 1], []]
    assert asked.owner.tolist() == [1, 0, 1, 0, 1]
    answers = [torch.tensor([40, 10]), torch.tensor([20, 0, 20]), torch.tensor([], dtype=torch.int64)]
    assert asked.in_order(answers).tolist() == [20, 40, 0, 10, 20]


@pytest.mark.parametrize("ranks", [1, 3, 65_536, 65_537])
def test_owners_of_many_ranks_are_grouped(ranks):
    owners = hash_owners(70_000, ranks)
    nodes = torch.arange(0, 70_000, 3)
    asked = Asked.of(nodes, owners, torch.int64)
    assert torch.equal(nodes[asked.order], nodes[torch.from_numpy(asked.owner).sort(stable=True).indices])
    assert sum(asked.sizes) == len(nodes)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_messages_keep_keys_and_rows(dtype):
    groups = [(2**64 - 1, np.array([3, 1], dtype)), (0, np.array([7], dtype))]
    words = packed([groups[0], (5, np.array([], dtype)), groups[1]], np.dtype(dtype))
    assert words.dtype == dtype
    assert words.nbytes == 2 * HEADER_BYTES + 3 * words.itemsize
    assert [(key, rows.tolist()) for key, rows in unpacked(words)] == [(2**64 - 1, [3, 1]), (0, [7])]
    assert unpacked(packed([], np.dtype(dtype))) == []


def test_ids_that_do_not_fit_are_refused():
    owners = hash_owners(2**31, 2**20)
    rows = torch.zeros(owners.size(5) + 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="need int64 indices"):
        Share(rows, torch.empty(0, dtype=torch.int32), owners, 5)
    share = Share(rows, torch.empty(0, dtype=torch.int64), owners, 5)
    drawn, lengths = share.draw([(1, np.array([4, 4]))], BufferPool(limit=0), fanout=3, hop=0, replace=False, threads=1)
    assert (drawn.tolist(), lengths) == ([0, 0], [2])
