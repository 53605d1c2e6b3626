"""Placement of hot rows, by replay: every row within reach is where it is said to be, and shards balance."""

import pickle
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.store import cliques, open_device_rows, peer_access, place, share_device_rows


def cube_mesh():
    """Eight GPUs, two fully connected quads with one link from each GPU to the other quad."""
    access = torch.zeros(8, 8, dtype=torch.bool)
    for quad in (range(4), range(4, 8)):
        for a in quad:
            access[a, list(quad)] = True
    for a in range(4):
        access[a, a + 4] = access[a + 4, a] = True
    return access


def test_cliques_of_known_machines():
    assert cliques(torch.ones(8, 8)) == [list(range(8))]
    assert cliques(torch.eye(3)) == [[0], [1], [2]]
    assert cliques(cube_mesh()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert cliques([]) == cliques(torch.zeros(0, 0)) == []
    pairs = torch.eye(6, dtype=torch.bool)
    for a, b in ((0, 3), (1, 4), (2, 5)):
        pairs[a, b] = pairs[b, a] = True
    assert cliques(pairs) == [[0, 3], [1, 4], [2, 5]]


def test_one_way_access_does_not_count_and_a_device_reaches_itself():
    assert cliques([[False, True], [False, False]]) == [[0], [1]]
    assert cliques([[False, True], [True, False]]) == [[0, 1]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 8).flatmap(lambda n: st.lists(st.booleans(), min_size=n * n, max_size=n * n).map(lambda b: (n, b))))
def test_cliques_part_the_devices_and_the_first_is_the_largest(case):
    n, bits = case
    access = torch.tensor(bits, dtype=torch.bool).view(n, n)
    mutual = access & access.T
    found = cliques(access)
    assert sorted(d for group in found for d in group) == list(range(n))
    assert all(mutual[a, b] for group in found for a, b in combinations(group, 2))
    sizes = [len(group) for group in found]
    assert sizes == sorted(sizes, reverse=True)
    if n:
        largest = max(
            k for k in range(1, n + 1) for s in combinations(range(n), k) if all(mutual[a, b] for a, b in combinations(s, 2))
        )
        assert sizes[0] == largest
    left = set(range(n))
    for group in found:  # maximal among what was left
        assert not any(all(mutual[d, g] for g in group) for d in left - set(group))
        left -= set(group)


@settings(max_examples=40, deadline=None)
@given(
    nodes=st.integers(0, 200),
    capacity=st.integers(0, 60),
    kind=st.sampled_from(["replicate", "clique"]),
    seed=st.integers(0, 9),
)
def test_every_device_finds_every_hot_row(nodes, capacity, kind, seed):
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(nodes, generator=generator)
    devices = [5, 2, 7, 0, 1]
    access = torch.rand(5, 5, generator=generator) < 0.7
    placed = place(order, capacity_rows=capacity, devices=devices, placement=kind, access=access)
    rows = torch.arange(nodes) * 10
    memory = {device: rows[placed.shard(device)] for device in devices}
    mutual = access & access.T
    for at, device in enumerate(devices):
        group = placed.group(device)
        assert all(other == device or mutual[at, devices.index(other)] for other in group) or kind == "replicate"
        assert placed.hot(device) == min(nodes, capacity * len(group))
        shard, row = placed.locate(torch.arange(nodes, dtype=torch.int32), device)
        hot = order[: placed.hot(device)]
        assert torch.equal((shard >= 0).nonzero().flatten(), hot.sort().values)
        for node in hot.tolist():
            assert memory[group[int(shard[node])]][int(row[node])] == rows[node]
        sizes = [len(memory[other]) for other in group]
        assert max(sizes) <= capacity
        assert max(sizes) - min(sizes) <= 1
    if kind == "replicate":
        assert all(torch.equal(placed.shard(d), order[:capacity]) for d in devices)


def test_shards_of_a_clique_are_equally_hot():
    heat = 1 / torch.arange(1, 10_001).double() ** 0.7
    placed = place(torch.arange(10_000), capacity_rows=1000, devices=range(4), placement="clique", access=torch.ones(4, 4))
    traffic = torch.tensor([float(heat[placed.shard(d)].sum()) for d in range(4)])
    assert traffic.max() / traffic.min() < 1.15  # four parts of the order itself: 4.5
    assert placed.hot(0) == 4000


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="'replicate' or 'clique', not 'shard'"):
        place(torch.arange(3), capacity_rows=1, devices=[0], placement="shard")
    with pytest.raises(ValueError, match="node 1 is missing"):
        place(torch.tensor([0, 0]), capacity_rows=1, devices=[0])
    with pytest.raises(ValueError, match="permutation of 0 to 1, it holds 0 to 5"):
        place(torch.tensor([0, 5]), capacity_rows=1, devices=[0])
    with pytest.raises(ValueError, match="each once"):
        place(torch.arange(3), capacity_rows=1, devices=[0, 0])
    with pytest.raises(ValueError, match="access is for 3 devices, there are 2"):
        place(torch.arange(3), capacity_rows=1, devices=[0, 1], placement="clique", access=torch.ones(3, 3))
    with pytest.raises(ValueError, match="square matrix"):
        cliques(torch.ones(2, 3))
    with pytest.raises(ValueError, match="device 4 has no place here: devices are"):
        place(torch.arange(3), capacity_rows=1, devices=[0, 1]).group(4)


def test_a_placement_passes_between_processes():
    placed = place(torch.tensor([1, 0]), capacity_rows=1, devices=[0])
    assert torch.equal(pickle.loads(pickle.dumps(placed)).shard(0), placed.shard(0))


def test_access_without_gpus_is_empty():
    assert peer_access([]).shape == (0, 0)


def test_host_rows_are_not_shared_by_cuda():
    with pytest.raises(ValueError, match="for host rows use SharedRows"):
        share_device_rows(torch.zeros(2, 2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_opening_without_a_gpu_says_so():
    from headrace.store.tiers.ipc import DeviceRowsHandle

    handle = DeviceRowsHandle((1, 1), "torch.float32", 0, "GPU-0", ((),))
    with pytest.raises(RuntimeError, match="needs a GPU"):
        open_device_rows(handle)
    with pytest.raises(ValueError, match="reader 1 of a handle for 1"):
        open_device_rows(handle, reader=1)
