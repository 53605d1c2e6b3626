"""Page-locked memory: what the driver is asked for, when it is undone, and what is said when it refuses."""

import gc
import os
from contextlib import nullcontext

import pytest
import torch

from headrace import Graph
from headrace._pinned import PinError, pin_in_place
from headrace.store import SharedRows


class Runtime:
    """Stands for CUDA's runtime. Knows what is registered, and refuses by address and flags."""

    def __init__(self):
        self.registered, self.calls, self.refuses = {}, [], lambda address, flags: False

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        self.calls.append(flags)
        if self.refuses(address, flags):
            return 801
        self.registered[address] = size
        return 0

    def cudaHostUnregister(self, address):  # noqa: N802
        del self.registered[address]
        return 0


@pytest.fixture
def runtime(monkeypatch):
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() in runtime.registered)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor if tensor.is_pinned() else tensor.clone())
    monkeypatch.setattr("headrace._pinned._forget_refusal", lambda: None)
    yield runtime
    gc.collect()
    assert not runtime.registered


class Owner:
    pass


def test_locked_until_the_owner_goes_or_sooner(runtime):
    memory, owner = torch.zeros(10, 4), Owner()
    unpin = pin_in_place(memory, owner)
    assert runtime.registered == {memory.data_ptr(): 160}
    assert runtime.calls == [3]
    again = pin_in_place(memory, owner)  # is locked already
    assert runtime.calls == [3]
    unpin()
    unpin()
    assert runtime.registered
    again()
    assert not runtime.registered
    pin_in_place(memory, owner)
    del owner
    assert not runtime.registered
    pin_in_place(torch.zeros(0, 4), Owner())
    assert len(runtime.calls) == 2


def test_read_only_memory_is_locked_as_that(runtime):
    runtime.refuses = lambda address, flags: not flags & 8
    owner = Owner()
    pin_in_place(torch.zeros(3), owner)
    assert runtime.calls == [3, 11]
    assert len(runtime.registered) == 1


def test_a_refusal_names_size_error_and_remedy(runtime):
    runtime.refuses = lambda *_: True
    with pytest.raises(PinError, match=r"refused to page-lock 4,000 bytes .*error 801.*ulimit -l.*keep fewer rows"):
        pin_in_place(torch.zeros(1000), Owner(), remedy="keep fewer rows")


def test_a_forked_child_leaves_it_locked(runtime, monkeypatch):
    owner = Owner()
    memory = torch.zeros(3)
    unpin = pin_in_place(memory, owner)
    here = os.getpid()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: here + 1)
        unpin()
    assert len(runtime.registered) == 1
    runtime.registered.clear()


def test_a_graph_is_locked_in_place_or_copied(runtime):
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    pinned = graph.pin()
    assert pinned.is_pinned
    assert pinned.indices.data_ptr() == graph.indices.data_ptr() in runtime.registered
    assert graph.pin() is pinned is pinned.pin()
    del graph, pinned
    assert not runtime.registered
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    runtime.refuses = lambda address, flags: address == graph.indices.data_ptr()
    copy = graph.pin()
    assert copy.is_pinned
    assert copy.indptr.data_ptr() != graph.indptr.data_ptr()  # which is not locked any more
    assert not runtime.registered
    assert torch.equal(copy.indices, graph.indices)


@pytest.mark.parametrize("first", ["plain", "weighted", "other"])
def test_arrays_that_graphs_share_are_locked_until_the_last_is_gone(runtime, first):
    plain = Graph.from_edges([0, 1, 2], [1, 2, 0])
    graphs = {"plain": plain, "weighted": plain.with_weight(torch.ones(3)), "other": Graph(plain.indptr, plain.indices)}
    indices = plain.indices.data_ptr()
    del plain
    for graph in graphs.values():
        graph.pin()
    del graph
    assert runtime.registered.keys() >= {indices}
    assert len(runtime.calls) == 3  # indptr, indices, weight: once each
    del graphs[first]
    assert indices in runtime.registered
    graphs.popitem()
    assert indices in runtime.registered
    graphs.clear()
    assert not runtime.registered


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs POSIX shared memory in /dev/shm")
def test_shared_rows_are_locked_while_they_are_open(runtime):
    rows = SharedRows.create(torch.ones(4, 2))
    assert rows.pinned
    assert runtime.registered == {rows.rows.data_ptr(): 32}
    rows.close()
    assert not runtime.registered
    runtime.refuses = lambda *_: True
    with pytest.raises(PinError, match="pin=False keeps the rows unregistered"):
        SharedRows.create(torch.ones(4, 2), name="test-refused")
    assert not os.path.exists("/dev/shm/headrace-rows-test-refused")
    with SharedRows.create(torch.ones(4, 2), pin=False) as rows:
        assert not rows.pinned
