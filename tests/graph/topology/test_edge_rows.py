import copy
import gc

import pytest
import torch
from torch import Tensor

from headrace.graph.topology import edge_rows
from headrace.graph.topology.edge_rows import EdgeRows, carried, carry, rows_of


def edges_of(num_src: int, num_dst: int, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(0, num_src, (count,), generator=generator)
    return torch.stack([src, torch.randint(0, num_dst, (count,), generator=generator)])


def expanded(rows: EdgeRows) -> list[tuple[int, int]]:
    return sorted(zip(rows.sources().tolist(), rows.targets().tolist(), strict=True))


@pytest.mark.parametrize("sizes", [(9, 9), (5, 20), (20, 5)])
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("flipped", [False, True])
def test_rows_hold_the_edges(sizes: tuple[int, int], in_order: bool, flipped: bool) -> None:
    edge_index = edges_of(*sizes, 40)
    if flipped:
        edge_index = edge_index.flip(0)
    if in_order:
        edge_index = edge_index[:, edge_index[0 if flipped else 1].argsort(stable=True)]
    rows = rows_of(edge_index, *sizes, flipped=flipped)
    assert rows is not None
    assert (rows.permutation is None) == in_order
    src, dst = edge_index.flip(0) if flipped else edge_index
    assert torch.equal(rows.of_edges(src), rows.sources())
    assert torch.equal(rows.of_edges(dst), rows.targets())
    assert torch.equal(rows.whole().degrees(), torch.bincount(dst, minlength=sizes[1]))
    back = rows.reverse()
    assert (back.num_src, back.num_dst, back.num_rows) == (sizes[1], sizes[0], sizes[0])
    assert back.permutation is not None
    assert torch.equal(rows.sources()[back.permutation.long()], back.targets())
    assert torch.equal(rows.targets()[back.permutation.long()], back.sources())
    kept = rows.head(3)
    assert expanded(kept) == sorted(pair for pair in zip(src.tolist(), dst.tolist(), strict=True) if pair[1] < 3)


def test_ids_out_of_range_and_no_edges() -> None:
    assert rows_of(torch.tensor([[0, 3], [1, 1]]), 3, 3) is None
    assert rows_of(torch.tensor([[0, 1], [1, 5]]), 3, 3) is None
    assert rows_of(torch.tensor([[0, -1], [1, 1]]), 3, 3) is None
    empty = rows_of(torch.empty(2, 0, dtype=torch.int64), 3, 3)
    assert empty is not None
    assert empty.whole().indptr.tolist() == [0, 0, 0, 0]


def test_rows_are_remembered_until_the_tensor_changes_in_place() -> None:
    edge_index = edges_of(9, 9, 40)
    first = rows_of(edge_index, 9, 9)
    assert rows_of(edge_index, 9, 9) is first
    assert rows_of(edge_index, 9, 10) is not first
    assert rows_of(edge_index, 9, 9) is first
    assert rows_of(edge_index.clone(), 9, 9) is not first
    edge_index[0, 0] = (edge_index[0, 0] + 1) % 9
    second = rows_of(edge_index, 9, 9)
    assert second is not None
    assert second is not first
    assert torch.equal(second.of_edges(edge_index[0]), second.sources())
    edge_index[1].add_(1).remainder_(9)  # through a view
    third = rows_of(edge_index, 9, 9)
    assert third is not None
    assert torch.equal(third.of_edges(edge_index[1]), third.targets())


def test_memory_goes_with_the_tensor_and_copies_have_none() -> None:
    gc.collect()
    before = len(edge_rows._MEMORY)
    edge_index = edges_of(9, 9, 40)
    rows_of(edge_index, 9, 9)
    edge_index[0, 0] = 1
    assert carried(copy.deepcopy(edge_index)) is None  # it begins to count versions anew
    assert len(edge_rows._MEMORY) == before + 1
    del edge_index
    gc.collect()
    assert len(edge_rows._MEMORY) == before


def test_carried_rows_are_taken_as_they_are() -> None:
    edge_index = torch.tensor([[1, 2, 0], [0, 0, 1]])
    rows = EdgeRows(torch.tensor([0, 2, 3]), torch.tensor([1, 2, 0], dtype=torch.int32), 3, 3)
    carry(edge_index, rows)
    assert carried(edge_index) is rows
    assert rows_of(edge_index, 3, 3) is rows
    edge_index.add_(0)
    assert carried(edge_index) is None


def test_tensors_of_inference_mode_are_not_remembered() -> None:
    with torch.inference_mode():
        edge_index = edges_of(9, 9, 40)
        carry(edge_index, EdgeRows(torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), 9, 9))
        rows = rows_of(edge_index, 9, 9)
        assert rows is not None
        assert torch.equal(rows.of_edges(edge_index[0]), rows.sources())
        edge_index[0] = 0
        again = rows_of(edge_index, 9, 9)
        assert again is not None
        assert not again.sources().any()


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("reversed_first", [False, True])
@pytest.mark.parametrize("count", [40, 0])
def test_rows_repeated_have_copies_with_ids_of_their_own(in_order: bool, reversed_first: bool, count: int) -> None:
    edge_index = edges_of(9, 6, count)
    if in_order:
        edge_index = edge_index[:, edge_index[1].argsort(stable=True)]
    rows = rows_of(edge_index, 9, 6)
    assert rows is not None
    rows = rows.whole()
    if reversed_first:
        rows.reverse()
    three = rows.repeated(3)
    assert (three.num_src, three.num_dst, three.num_rows) == (27, 18, 18)
    expected = [(source + 9 * copy, target + 6 * copy) for copy in range(3) for source, target in expanded(rows)]
    assert expanded(three) == sorted(expected)
    values = torch.arange(count)
    assert torch.equal(
        three.of_edges(torch.cat([values, values + count, values + 2 * count])) % max(count, 1), rows.of_edges(values).repeat(3)
    )
    back = three.reverse()
    assert expanded(back) == sorted((target, source) for source, target in expected)
    assert back.permutation is not None
    assert torch.equal(three.sources()[back.permutation.long()], back.targets())
    assert rows.repeated(3) is three
    assert rows.repeated(1) is rows


def test_ids_of_repeated_rows_get_the_bits_they_need() -> None:
    indptr, indices = torch.tensor([0, 1]), torch.tensor([2**30], dtype=torch.int32)
    rows = EdgeRows(indptr, indices, 2**30 + 1, 1).repeated(3)
    assert rows.indices.tolist() == [2**30, 2**31 + 1, 3 * 2**30 + 2]
