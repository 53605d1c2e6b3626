"""Page-locking in place on a real driver: read-only maps, refusals, and an end that is in time."""

import gc
import threading
from contextlib import suppress

import numpy as np
import pytest
import torch

from headrace._arrays import as_tensor
from headrace._capture import recording
from headrace._pinned import PinError, pin_in_place
from headrace.store import BufferPool

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch sees"),
]


class Owner:
    pass


def test_a_read_only_map_is_locked_or_refused_and_kernels_run_afterwards(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(10_000.0))
    mapped = as_tensor(np.load(tmp_path / "x.npy", mmap_mode="r"), "x")
    owner = Owner()
    with suppress(PinError):
        pin_in_place(mapped, owner)
        assert mapped.is_pinned()
    assert (torch.ones(100, device="cuda") * 2).sum().item() == 200  # nothing is left of what the driver may have refused


def test_a_refusal_is_said_once_and_memory_is_free_again_when_the_owner_goes():
    memory, owner = BufferPool(limit=0).empty((1 << 20,), torch.uint8), Owner()
    inner = memory[4096:-4096]
    unpin = pin_in_place(inner, owner)
    with pytest.raises(PinError, match="1,048,576 bytes"):  # a part of it is locked already
        pin_in_place(memory, owner)
    assert (torch.ones(100, device="cuda") * 2).sum().item() == 200
    unpin()
    assert not inner.is_pinned()
    pin_in_place(memory, owner)
    assert memory.is_pinned()
    del owner
    assert not memory.is_pinned()


def locked_owner():
    memory, owner = BufferPool(limit=0).empty((1 << 16,), torch.uint8), Owner()
    pin_in_place(memory, owner)
    return owner


def test_the_end_of_locked_memory_does_not_end_a_recording():
    x = torch.zeros(10, device="cuda")
    owner, garbage = locked_owner(), locked_owner()
    garbage.itself = garbage
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    elsewhere = threading.Thread(target=lambda: owners.pop())
    owners, thresholds = [owner], gc.get_threshold()
    del owner
    try:
        with recording(graph, stream):
            gc.set_threshold(1, 1, 1)
            x += 1
            del garbage
            elsewhere.start()  # the other owner's end waits for the end of the recording
            elsewhere.join(0.2)
            kept = [[i] for i in range(1000)]  # makes the collector run, if it may
            x += 1
        elsewhere.join()
    finally:
        gc.set_threshold(*thresholds)
    graph.replay()
    assert x.tolist() == [2.0] * 10
    assert len(kept) == 1000
    assert gc.isenabled()
