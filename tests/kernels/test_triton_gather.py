"""The GPU's row kernels on CPU tensors, under Triton's interpreter."""

import pytest
import torch

from headrace.kernels import ShardTable, gather_sharded
from interpreted import run_interpreted

PLAIN = """
import torch
from headrace.kernels import gather_reference
from headrace.kernels._gather.triton_gather import gather_rows

torch.manual_seed(0)
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64):
    for shape in ((), (1,), (47,), (100,), (602,), (2, 3), (0,)):
        x = torch.randint(0, 100, (40, *shape)).to(dtype)
        for ids in (torch.randint(0, 40, (33,)), torch.randint(0, 40, (9,), dtype=torch.int32), torch.zeros(0, dtype=torch.int64)):
            out = torch.zeros(len(ids), *shape, dtype=dtype)
            gather_rows(x, ids, out, x[0].numel() * x.element_size())
            assert torch.equal(out, gather_reference(x, ids)), (dtype, shape)
bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(-1, 4)  # every half, NaNs too
ids = torch.randint(0, len(bits), (500,))
for dtype in (torch.float16, torch.bfloat16):
    out = torch.zeros(500, 4, dtype=dtype)
    gather_rows(bits.view(dtype), ids, out, 8)
    assert torch.equal(out.view(torch.int16), bits[ids])
for offset in (0, 1, 2, 4, 8):  # rows of 16 bytes that begin anywhere
    memory = torch.randint(0, 100, (offset + 160,), dtype=torch.int8)
    x, out = memory[offset:].view(10, 16), torch.full((4 * 16 + offset,), 7, dtype=torch.int8)
    gather_rows(x, torch.tensor([9, 0, 3, 3]), out[offset:].view(4, 16), 16)
    assert torch.equal(out[offset:].view(4, 16), x[[9, 0, 3, 3]]) and out[:offset].eq(7).all()
out = torch.full((4, 3), 5.0)  # an id out of range reads and writes nothing
gather_rows(torch.zeros(2, 3), torch.tensor([0, 2, -1, 1]), out, 12)
assert out[:, 0].tolist() == [0, 5, 5, 0]
print("equal")
"""

SHARDED = """
import torch
from headrace.kernels import ShardTable, add_sharded, gather_sharded, gather_sharded_reference

torch.manual_seed(0)
cpu = torch.device("cpu")
def shards_of(lengths, width, dtype, stride):
    memories, views = [], []
    for n in lengths:
        memory = torch.randint(0, 100, (n + 1, stride), dtype=torch.int8)  # a row more: no shard is of size 0
        view = memory.view(dtype)[:, :width]
        view.copy_(torch.randint(0, 60, view.shape).to(dtype))
        memories.append(memory), views.append(view)
    return memories, views

for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int8):
    for width in (1, 47, 100, 602):
        size = width * dtype.itemsize
        for stride in (size, -(-size // 32) * 32):
            memories, views = shards_of((5, 9, 3), width, dtype, stride)
            bases = [m.data_ptr() for m in memories]
            shard, row = torch.arange(20) % 4 - 1, torch.arange(20) // 4 % 3
            table = ShardTable.by_location(bases, shard, row, stride=stride, device=cpu)
            assert table.location.dtype == torch.int32
            in_order = ShardTable.in_order(bases, (5, 9, 3), stride=stride, num_rows=20, device=cpu)
            where = torch.tensor([0] * 5 + [1] * 9 + [2] * 3 + [-1] * 3)
            inner = torch.tensor([*range(5), *range(9), *range(3), 0, 0, 0])
            for kind, made, s, r in ((torch.int32, table, shard, row), (torch.int64, in_order, where, inner)):
                ids = torch.randint(0, 20, (23,)).to(kind)
                hits = torch.zeros(3, dtype=torch.int64)
                out = gather_sharded(made, ids, out=torch.full((23, width), 99).to(dtype), hits=hits)
                expected = gather_sharded_reference(views, s, r, ids, out=torch.full((23, width), 99).to(dtype))
                assert torch.equal(out, expected), (dtype, width, stride)
                assert hits.tolist() == [int((s[ids.long()] == k).sum()) for k in range(3)]
                again = gather_sharded(made, ids, out=torch.full((23, width), 99).to(dtype), programs=2)
                assert torch.equal(again, expected), (dtype, width, stride)
                again = gather_sharded(made, ids, out=torch.full((23, width), 99).to(dtype), sort=True, programs=2)
                assert torch.equal(again, expected), (dtype, width, stride)
        ids = torch.tensor([16, 0, 7, 19])
        delta = torch.randint(0, 60, (4, width)).to(dtype)
        old = gather_sharded(in_order, ids, out=torch.zeros(4, width, dtype=dtype))
        add_sharded(in_order, ids, delta)
        new = gather_sharded(in_order, ids, out=torch.zeros(4, width, dtype=dtype))
        assert torch.equal(new[:3], (old + delta)[:3]) and new[3].eq(0).all()

memories, views = shards_of((4,), 2, torch.float32, 8)
far, here = memories[0].data_ptr(), torch.zeros(2, dtype=torch.int64)
wide = ShardTable.by_location([far], here, torch.tensor([3, 2**33]), stride=8, device=cpu)
assert wide.location.dtype == torch.int64
assert torch.equal(gather_sharded(wide, torch.tensor([0]), out=torch.zeros(1, 2)), views[0][[3]])
one = ShardTable.in_order([memories[0].data_ptr()], [4], stride=8, num_rows=4, device=cpu)
out = gather_sharded(one, torch.tensor([4, -1, 2]), out=torch.full((3, 2), 5.0), check=False)
assert out[:2].eq(5).all() and torch.equal(out[2], views[0][2])
out = gather_sharded(one, torch.tensor([4, -1, 2]), out=torch.full((3, 2), 5.0), check=False, sort=True)
assert out[:2].eq(5).all() and torch.equal(out[2], views[0][2])
assert gather_sharded(one, torch.zeros(0, dtype=torch.int64), out=torch.zeros(0, 2)).shape == (0, 2)
print("equal")
"""


@pytest.mark.parametrize("script", [PLAIN, SHARDED], ids=["plain", "sharded"])
def test_rows_equal_the_reference_under_the_interpreter(script):
    run_interpreted(script)


@pytest.mark.parametrize(
    ("ids", "shape", "error", "complaint"),
    [
        ([4], (1, 2), IndexError, "ids from 4 to 4 for 4 rows"),
        ([0, -1], (2, 2), IndexError, "ids from -1 to 0 for 4 rows"),
        ([0], (2, 2), ValueError, r"out must be contiguous, one row per id \(1\)"),
        ([0], (1, 3), ValueError, "of 8 bytes a row at most"),
        ([[0]], (1, 2), ValueError, "ids must be int32 or int64"),
        ([0.5], (1, 2), ValueError, "ids must be int32 or int64"),
    ],
)
def test_bad_input_is_named(ids, shape, error, complaint):
    memory = torch.zeros(4, 2)
    table = ShardTable.in_order([memory.data_ptr()], [4], stride=8, num_rows=4, device=torch.device("cpu"))
    with pytest.raises(error, match=complaint):
        gather_sharded(table, torch.tensor(ids), out=torch.zeros(shape))


def test_tables_that_cannot_be_are_refused():
    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match="one length per shard"):
        ShardTable.in_order([64, 128], [1], stride=8, num_rows=4, device=cpu)
    with pytest.raises(ValueError, match="one length per shard, 4 rows in all"):
        ShardTable.in_order([64], [5], stride=8, num_rows=4, device=cpu)
    with pytest.raises(ValueError, match="one row per node"):
        ShardTable.by_location([64], torch.zeros(2), torch.zeros(3), stride=8, device=cpu)
    with pytest.raises(ValueError, match="stride must be at least one byte"):
        ShardTable.in_order([64], [1], stride=0, num_rows=4, device=cpu)
