"""Rows on a GPU: the gather kernel, and stores over GPU memory, pinned memory and disk."""

import numpy as np
import pytest
import torch

from headrace.kernels import gather
from headrace.store import FileRows, Tiered

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.float64, torch.int64, torch.bool, torch.complex64]
SHAPES = [(), (1,), (3,), (47,), (64,), (100,), (602,), (2, 3), (0,)]


def rows_of(shape, dtype, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 60, shape)).to(dtype)


def random_ids(count, below, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, below, count))


def on_disk(path, x):
    np.save(path, (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy())
    return path


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_equal_indexing(dtype, shape):
    x = rows_of((3_000, *shape), dtype)
    near = x.cuda()
    for count in (0, 1, 17, 5_000):
        ids = random_ids(count, 3_000)
        for given in (ids.cuda(), ids.int().cuda(), ids):
            assert torch.equal(gather(near, given).cpu(), x[ids])
        out = torch.empty(count, *shape, dtype=dtype, device="cuda")
        assert gather(near, ids.cuda(), out=out, check=False) is out
        assert torch.equal(out.cpu(), x[ids])


def test_rows_that_begin_anywhere():
    for offset in (1, 2, 4, 8):
        memory = rows_of((offset + 1600,), torch.int8).cuda()
        x = memory[offset:].view(100, 16)
        assert torch.equal(gather(x, torch.arange(99, -1, -1, device="cuda")), x.flip(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_the_gradient_equals_the_cpu_and_has_the_same_bits_twice(dtype):
    ids, grad = random_ids(4_000, 50), torch.randn(4_000, 33)
    x = torch.randn(50, 33, dtype=dtype, device="cuda", requires_grad=True)
    found = [torch.autograd.grad(gather(x, ids.cuda()), x, grad.to(dtype).cuda())[0] for _ in range(3)]
    expected = torch.zeros(50, 33, dtype=torch.float64).index_add(0, ids, grad.to(dtype).double())
    assert torch.allclose(found[0].cpu().double(), expected, rtol=1e-2 if dtype == torch.float16 else 1e-4, atol=1e-3)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_ids_out_of_range_are_an_index_error_and_unchecked_ones_read_nothing():
    x = torch.ones(5, 2, device="cuda")
    for ids in ([5], [-1], [0, 2**40]):
        for given in (torch.tensor(ids), torch.tensor(ids).cuda()):
            with pytest.raises(IndexError, match="for 5 rows"):
                gather(x, given)
    out = torch.full((3, 2), 7.0, device="cuda")
    gather(x, torch.tensor([0, 5, -1], device="cuda"), out=out, check=False)
    assert out[:, 0].tolist() == [1, 7, 7]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_tier_gives_its_rows(tmp_path, dtype, shape):
    x = rows_of((2_000, *shape), dtype)
    path = on_disk(tmp_path / "x.npy", x)
    ids = random_ids(3_000, 2_000)
    for order in (None, torch.randperm(2_000)):
        for device, host in ((0.3, "rest"), (0.3, 0.4), (0, "rest"), (1.0, 0), (0, 0)):
            store = Tiered(x, device_cache=device, host=host, order=order, disk=path)
            assert store.device.type == "cuda"
            for given in (ids, ids.cuda(), ids.int().cuda(), ids[:0], ids[:1]):
                found = store.gather(given)
                assert found.is_cuda
                assert torch.equal(found.cpu(), x[given.cpu().long()])
            assert shape == (0,) or store.use().hits == 9_001  # of no bytes none is read


@pytest.mark.parametrize("align", [1, 16, 32, 64, 128])
def test_any_alignment(align):
    x = rows_of((500, 100), torch.float32)
    store = Tiered(x, device_cache=0.5, order=torch.randperm(500), align=align)
    assert store.stride % align == 0
    assert torch.equal(store.gather(torch.arange(500)).cpu(), x)


def test_uses_are_counted_on_the_device(tmp_path):
    x = rows_of((10, 4), torch.float32)
    store = Tiered(x, device_cache=0.2, host=0.3, order=torch.tensor([7, 2, 9]), disk=on_disk(tmp_path / "x.npy", x))
    store.gather(torch.tensor([7, 2, 2, 9, 1, 0, 4, 5], device="cuda"))
    assert [t.hits for t in store.use().tiers] == [3, 3, 2]
    assert "pinned memory" in store.describe()


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (100,), (2, 3)], ids=str)
def test_added_rows_stay_through_refills(tmp_path, dtype, shape):
    x = rows_of((200, *shape), dtype)
    file = FileRows(on_disk(tmp_path / "x.npy", x), dtype=dtype, writable=True)
    store = Tiered(file, device_cache=0.3, host=0.3, order=torch.randperm(200))
    ids = random_ids(300, 200)
    delta = torch.ones(300, *shape, dtype=dtype)
    expected = x.index_add(0, ids, delta)
    store.add_(ids.cuda(), delta.cuda())
    assert torch.equal(store.gather(torch.arange(200)).cpu(), expected)
    for _ in range(3):
        store.refill(torch.randperm(200))
        assert torch.equal(store.gather(torch.arange(200)).cpu(), expected)


def test_adding_has_the_same_bits_twice():
    x, ids, delta = torch.randn(50, 33), random_ids(4_000, 50), torch.randn(4_000, 33)
    found = []
    for _ in range(3):
        store = Tiered(x, device_cache=0.5)
        store.add_(ids, delta)
        found.append(store.gather(torch.arange(50)))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.allclose(found[0].cpu(), x.index_add(0, ids, delta), atol=1e-4)


def test_out_of_core_gathers_on_several_streams(tmp_path):
    x = rows_of((20_000, 100), torch.float32)
    mapped = np.load(on_disk(tmp_path / "x.npy", x), mmap_mode="r")
    store = Tiered(mapped, device_cache="1MiB", host="2MiB", order=torch.randperm(20_000))
    assert store.use().tiers[2].rows > 10_000
    streams = [torch.cuda.Stream() for _ in range(3)]
    for round_ in range(12):  # more than there are staging buffers
        ids = random_ids(4_000, 20_000, seed=round_)
        with torch.cuda.stream(streams[round_ % 3]):
            found = store.gather(ids.cuda(), check=False)
            assert torch.equal(found.cpu(), x[ids])


def test_unpinned_when_it_dies():
    x = rows_of((1_000, 100), torch.float32)
    for _ in range(50):  # pages that stayed registered would be refused when their memory is used again
        store = Tiered(x, device_cache=0)
        assert store._memory.host_rows.is_pinned()
        assert torch.equal(store.gather(torch.tensor([999])).cpu(), x[[999]])
        del store
