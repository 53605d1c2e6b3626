"""`Tiered` stores of several ranks without a GPU: ranks are threads, the kernel runs in triton's interpreter.

Run by `test_peers.py` as `peer_checks.py FILE`; stands in for what only a driver can do.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.store import ArrayStore, FileRows, Tiered
from headrace.store.tiers import gpu_memory, meeting, peers, tiered
from headrace.store.tiers.counts import row_stride
from rank_threads import on_every_rank

CPU = torch.device("cpu")


@dataclass
class Handle:
    rows: torch.Tensor
    readers: int
    opened: set = field(default_factory=set)


def open_rows(handle, *, reader, device):
    assert 0 <= reader < handle.readers
    assert reader not in handle.opened, "one ticket, one reader"
    handle.opened.add(reader)
    return handle.rows


gpu_memory.pin_in_place = lambda *_, **__: None
gpu_memory.GpuMemory.settle = lambda _: None
peers.share_device_rows = lambda rows, *, readers: Handle(rows, readers)
peers.open_device_rows = open_rows
meeting.device_uuid = lambda device: "GPU"
tiered._check_group = lambda *_: None


def left_over():
    return list(Path("/dev/shm").glob(f"headrace-rows-{os.getpid()}-*"))


def expected_hits(order, ids, mine, size, hot, rest):
    heat = torch.argsort(order)[ids]
    near = heat < hot
    own = near & (heat % size == mine)
    host = ~near & (heat < hot + rest)
    return [int(own.sum()), int((near & ~own).sum()), int(host.sum()), len(ids) - int(near.sum()) - int(host.sum())]


def check(path, dtype, shape, groups, device, host, shared):
    """`groups` says which ranks reach each other."""
    size = sum(map(len, groups))
    access = [[any(a in g and b in g for g in groups) for b in range(size)] for a in range(size)]
    meeting.reach = lambda offers, rank: access[rank]
    x = torch.randint(0, 30, (40, *shape)).to(dtype)
    np.save(path, (x.view(torch.int16) if dtype == torch.bfloat16 else x).numpy())
    order = torch.randperm(40)

    def build(ranks):
        file = FileRows(path, dtype=dtype)
        placement = "clique" if len(groups) < size else "replicate"
        return Tiered(
            file, device=CPU, device_cache=device, host=host, order=order, group=ranks, placement=placement, shared=shared
        )

    stores = on_every_rank(size, build)
    in_common = [s._memory._shared for s in stores if isinstance(s._memory, peers.PeerMemory) and s._memory._shared is not None]
    assert len(in_common) == (size if size > 1 and shared is not False else 0)
    assert not left_over(), "all have opened it: a crash must not leave the file"
    ids = torch.randint(0, 40, (60,))
    for rank, store in enumerate(stores):
        assert isinstance(store, Tiered), store
        assert torch.equal(store.gather(torch.arange(40)), x), (dtype, shape, groups)
        for some in (ids, ids.int(), ids[:0], ids[:1].repeat(3)):
            assert torch.equal(store.gather(some), x[some.long()])
        members = next(g for g in groups if rank in g)
        tiers = store.use().tiers
        if isinstance(store._memory, peers.PeerMemory) and 0 not in shape:
            held = sum(t.rows for t in tiers[:-1])
            hot = min(40, round(40 * device) * len(members))
            asked = torch.cat([torch.arange(40), ids, ids, ids[:1].repeat(3)])
            expected = expected_hits(order, asked, members.index(rank), len(members), hot, held - hot)
            if len(members) == 1:
                assert expected.pop(1) == 0
            assert [t.hits for t in tiers] == expected
            assert sum(t.rows for t in tiers) == 40
            for refused in (lambda s=store: s.refill(order), lambda s=store: s.add_(ids, x[ids])):
                with pytest.raises(ValueError, match="held in common with others"):
                    refused()
            assert ("peers" in store.describe()) == (len(members) > 1)
            assert "its peers" in repr(store)
    on_every_rank(size, lambda ranks: stores[ranks.rank].close())
    assert not left_over()
    for store in stores:
        store.close()
        if isinstance(store._memory, peers.PeerMemory):
            with pytest.raises(ValueError, match="closed"):
                store.gather(ids)


def check_padded_rows():
    meeting.reach = lambda offers, rank: [True] * len(offers)
    x = torch.randn(50, 100).bfloat16()
    stride, order = row_stride(200, 2, None), torch.randperm(50)
    assert stride == 224

    def build(ranks):
        met = meeting.meet(
            ranks,
            order,
            shape=x.shape,
            dtype=x.dtype,
            stride=stride,
            device=CPU,
            hot=7,
            host=50,
            placement="clique",
            shared=None,
        )
        return peers.PeerMemory(met, ArrayStore(x), stride=stride, device=CPU)

    memories = on_every_rank(3, build)
    for memory in memories:
        out = torch.empty_like(x)
        memory.place(None)
        assert memory.gather(torch.arange(50), out) is None
        assert torch.equal(out, x)
    on_every_rank(3, lambda ranks: memories[ranks.rank].close())


def check_a_rank_that_fails():
    meeting.reach = lambda offers, rank: [True] * len(offers)

    class Broken(ArrayStore):
        def gather(self, ids, *, out=None, check=True):
            raise OSError("the disk is gone")

    x = torch.ones(10, 4)

    def build(ranks):
        met = meeting.meet(
            ranks,
            torch.arange(10),
            shape=x.shape,
            dtype=x.dtype,
            stride=16,
            device=CPU,
            hot=2,
            host=10,
            placement="clique",
            shared=None,
        )
        return peers.PeerMemory(met, (ArrayStore, Broken)[ranks.rank](x), stride=16, device=CPU)

    found = on_every_rank(2, build)
    assert isinstance(found[1], OSError)
    assert "rank 1 failed, so this store cannot be built: OSError: the disk is gone" in str(found[0])
    found.clear()


if __name__ == "__main__":
    torch.manual_seed(0)
    for kind, shape in ((torch.float32, (100,)), (torch.bfloat16, (47,)), (torch.int8, ()), (torch.float32, (0,))):
        check(sys.argv[1], kind, shape, [[0, 1]], 0.25, 0.25, None)
    check(sys.argv[1], torch.float32, (3,), [[0, 2], [1]], 0.25, 0.25, None)  # one host copy for groups of two sizes
    check(sys.argv[1], torch.float32, (3,), [[0, 1, 2]], 0.1, "rest", False)
    check(sys.argv[1], torch.float32, (3,), [[0], [1]], 0.25, 0.25, None)
    check(sys.argv[1], torch.float32, (3,), [[0], [1]], 0.25, 0.25, False)  # nothing in common
    check(sys.argv[1], torch.float32, (3,), [[0, 1]], 0.0, "rest", None)
    check(sys.argv[1], torch.float32, (3,), [[0, 1]], 0.6, 0, None)
    check_padded_rows()
    check_a_rank_that_fails()
    print("equal")
