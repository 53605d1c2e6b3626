"""Rows of a GPU between two processes, and host rows that a GPU reads in place."""

import multiprocessing

import pytest
import torch

from headrace.store import SharedRows, open_device_rows, place, share_device_rows

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]
NODES, WIDTH = 1000, 47
ORDER = torch.randperm(NODES, generator=torch.Generator().manual_seed(1))


def all_rows():
    return torch.arange(NODES * WIDTH, dtype=torch.float32).view(NODES, WIDTH)


def serve_shard(inbox, outbox):
    """The other process: holds shard 1, reads shard 0 of its parent and its own, and writes into shard 0."""
    try:
        placed = place(ORDER, capacity_rows=300, devices=[0, 1], placement="clique", access=torch.ones(2, 2))
        mine = all_rows()[placed.shard(1)].cuda()
        outbox.put(share_device_rows(mine, readers=2))
        theirs = open_device_rows(inbox.get(timeout=60))
        found = gather_from([theirs, mine], placed, 1)
        theirs[0] = -1
        torch.cuda.synchronize()
        outbox.put(bool(torch.equal(found, all_rows()[ORDER[:600]])))
        inbox.get(timeout=60)  # keep the shard until the parent has read it
        del theirs
        torch.cuda.synchronize()
    except BaseException as error:
        outbox.put(error)


def gather_from(shards, placed, device):
    shard, row = placed.locate(ORDER[: placed.hot(device)].cuda(), device)
    out = torch.full((len(row), WIDTH), torch.nan, device="cuda")
    for number, rows in enumerate(shards):
        at = (shard == number).nonzero().flatten()
        out[at] = rows[row[at]]
    return out.cpu()


def test_two_processes_read_each_others_shards_on_one_gpu():
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=serve_shard, args=(inbox, outbox))
    child.start()
    try:
        placed = place(ORDER, capacity_rows=300, devices=[0, 1], placement="clique", access=torch.ones(2, 2))
        mine = all_rows()[placed.shard(0)].cuda()
        inbox.put(share_device_rows(mine))
        handle = outbox.get(timeout=120)
        assert not isinstance(handle, BaseException), handle
        assert handle.shape == (300, WIDTH)
        theirs, again = open_device_rows(handle, reader=0), open_device_rows(handle, reader=1)
        assert theirs.data_ptr() == again.data_ptr()
        assert outbox.get(timeout=120) is True
        assert mine[0].eq(-1).all()  # what the other wrote
        expected = all_rows()[ORDER[:600]]
        expected[0] = -1
        assert torch.equal(gather_from([mine, theirs], placed, 0), expected)
        del theirs, again
        torch.cuda.synchronize()
        inbox.put("done")
        child.join(60)
        assert child.exitcode == 0
    finally:
        if child.is_alive():
            child.kill()


def test_an_unseen_gpu_is_named():
    handle = share_device_rows(torch.zeros(2, 2, device="cuda"))
    object.__setattr__(handle, "device_uuid", "none such")
    with pytest.raises(RuntimeError, match="GPU none such, which this process does not see"):
        open_device_rows(handle)


def read_on_gpu(shared, queue):
    try:
        queue.put((shared.pinned, shared.rows.is_pinned(), shared.rows.to("cuda", non_blocking=True).sum().item()))
    except BaseException as error:
        queue.put(error)


def test_shared_host_rows_are_registered_in_every_process():
    with SharedRows.create(torch.ones(1000, 100)) as rows:
        assert rows.pinned
        assert rows.rows.is_pinned()
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        child = context.Process(target=read_on_gpu, args=(rows, queue))
        child.start()
        assert queue.get(timeout=120) == (True, True, 100_000.0)
        child.join(60)
        assert child.exitcode == 0
    with SharedRows.create(torch.ones(10, 10), pin=False) as rows:
        assert not rows.rows.is_pinned()


@triton.jit
def copy_from(address, out, width: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, width)
    rows = address.to(tl.pointer_type(tl.float32))
    tl.store(out + row * width + columns, tl.load(rows + row * width + columns))


def test_a_kernel_reads_shared_host_rows_in_place():
    source = torch.randn(1000, 64)
    with SharedRows.create(source) as rows:
        out = torch.empty(1000, 64, device="cuda")
        copy_from[(1000,)](rows.rows.data_ptr(), out, 64)
        assert torch.equal(out.cpu(), source)
