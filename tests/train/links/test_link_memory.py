"""Tables larger than memory: trained under a hard limit, with the bytes that the order's formula says; budgets that do not fit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

import headrace as hr
from headrace.pipeline import orders
from headrace.train import LinkOptions, link
from headrace.train.links.batches import EdgeBatches
from headrace.train.links.edges import BucketedEdges
from headrace.train.links.memory import LinkMemory, slot_bytes, spare_slots


def trained_under_limit(folder, options, nodes, edges):
    """What the child says, which had `memory` beside what its libraries take."""
    child = Path(__file__).parents[2] / "memory_child.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(child), str(folder), json.dumps(options), str(nodes), str(edges)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def check_larger_than_memory(folder, options, nodes, edges):
    found = trained_under_limit(folder, options, nodes, edges)
    made = LinkOptions(**options)
    assert found["whole"] == "does not fit"  # the limit is one
    assert found["bytes"] >= 4 * made.memory_bytes
    size = slot_bytes(made, nodes=nodes, state=1)
    assert found["bytes"] <= made.partitions * size <= 1.01 * found["bytes"]  # S: all partitions, padding included
    deal = EdgeBatches(torch.zeros(0, 3, dtype=torch.int32), nodes, made)
    for number, line in enumerate(found["epochs"]):
        disk, loads = line["disk"], deal.plan(number).order.swaps
        first = made.buffer if number == 0 else 0  # fills the buffer once: it is kept from epoch to epoch
        # A partition that is needed again while batches in flight still hold it never left: that saves a load now and then.
        assert 0.97 * (loads + first) <= disk["loads"] <= loads + first
        wanted = 2 * loads * found["bytes"] / made.partitions
        assert disk["bytes_read"] + disk["bytes_written"] == pytest.approx(wanted + first * size, rel=0.03)
        assert disk["edge_bytes"] == 12 * (edges - (edges + 99) // 100)
        assert 0 < disk["busy"] <= 1
        assert disk["busy_seconds"] <= disk["read_seconds"] + disk["write_seconds"] + 1e-6
        assert disk["stall_seconds"] >= 0
        assert disk["slot_bytes"] <= made.memory_bytes
    total = found["result"]["disk"]
    for name in ("loads", "bytes_read", "bytes_written"):
        assert total[name] == sum(line["disk"][name] for line in found["epochs"])
    assert found["result"]["peak_memory"] > 0
    assert found["result"]["test"]["ranking"] == "full"
    return found


SHAPE = {"decoder": "distmult", "storage": "disk", "partitions": 32, "buffer": 4, "raw": True, "threads": 1, "epochs": 2}
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_DATA as Linux has it")


@linux
def test_a_table_of_four_times_the_memory_trains_under_a_hard_limit(tmp_path):
    more = {"dim": 128, "batch_size": 100, "chunks": 2, "negatives": 20, "staleness": 3, "memory": "32MiB", "order": "best"}
    check_larger_than_memory(tmp_path, {**SHAPE, **more}, nodes=262_144, edges=10_000)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("order", ["comet", "best"])
def test_a_larger_table_trains_under_a_hard_limit(tmp_path, order):
    more = {"dim": 128, "batch_size": 400, "chunks": 5, "negatives": 50, "staleness": 8, "memory": "128MiB", "order": order}
    check_larger_than_memory(tmp_path, {**SHAPE, **more}, nodes=1_100_000, edges=150_000)


@linux
@pytest.mark.slow
def test_an_encoder_keeps_to_the_memory_that_was_told(tmp_path):
    more = {"dim": 128, "batch_size": 100, "chunks": 2, "negatives": 20, "staleness": 2, "order": "best", "epochs": 1}
    options = {**SHAPE, **more, "encoder": "sage", "fanout": [10]}
    size = {"nodes": 200_000, "train": 20_000, "others": 200}
    budgets = (LinkOptions(**{**options, "fanout": (10,), "memory": f"{mib}MiB"}) for mib in range(20, 200))
    least = next(made for made in budgets if sum(LinkMemory.of(made, **size).main(0).values()) <= made.memory_bytes)
    assert least.memory_bytes < 200_000 * 129 * 4
    found = trained_under_limit(tmp_path, {**options, "memory": least.memory}, nodes=200_000, edges=20_000)
    assert found["whole"] == "does not fit"
    assert found["result"]["test"]["ranking"] == "full"
    assert numpy.load(tmp_path / "run" / "encoded.npy", mmap_mode="r").shape == (200_000, 128)


def disk(**changes):
    given = {"dim": 100, "storage": "disk", "partitions": 16, "buffer": 4, "batch_size": 100, "negatives": 10, "raw": True}
    return LinkOptions(**{**given, **changes})


def test_what_does_not_fit_is_refused_with_what_would():
    size = {"nodes": 1_000_000, "train": 100_000}
    needed = sum(LinkMemory.of(disk(), **size).main(0).values())
    assert spare_slots(disk(memory=str(needed)), **size) == 0
    assert spare_slots(disk(memory="1GiB"), **size) == spare_slots(disk(), **size) == 2
    with pytest.raises(ValueError, match=r"memory is .* MiB and .* MiB are needed \(.*slots 96.* MiB.*\): partitions 32 would fit"):
        spare_slots(disk(memory=str(needed - 1)), **size)
    with pytest.raises(ValueError, match=r"use memory .*MiB or a smaller batch_size"):
        spare_slots(disk(memory="1MiB"), **size)
    with pytest.raises(ValueError, match="use storage disk with partitions"):
        spare_slots(LinkOptions(dim=100, memory="64MiB"), **size)


@pytest.mark.parametrize(("memory", "message"), [("much", "is not a size"), ("0MiB", "memory must be above 0")])
def test_wrong_sizes_are_refused(memory, message):
    with pytest.raises(ValueError, match=message):
        LinkOptions(memory=memory)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("nodes", "partitions", "edges"), [(10, 4, 50), (3, 4, 9), (1000, 7, 300_000), (5, 1, 1)])
def test_edges_in_a_file_are_those_in_memory_by_bucket(tmp_path, dtype, nodes, partitions, edges):
    triples = torch.randint(0, nodes, (edges, 3), generator=torch.Generator().manual_seed(1)).to(dtype)
    found = BucketedEdges.write(tmp_path / "edges.bin", triples, num_nodes=nodes, partitions=partitions)
    size = -(-nodes // partitions)
    bucket = triples[:, 0].long() // size * partitions + triples[:, 2].long() // size
    assert torch.equal(found.triples, triples[bucket.argsort(stable=True)])
    assert list(found.ends) == torch.bincount(bucket, minlength=partitions**2).cumsum(0).tolist()
    options = LinkOptions(partitions=partitions, buffer=min(2, partitions), order="beta", batch_size=max(7, edges // 50))
    plans = [EdgeBatches(triples, nodes, options).plan(3), EdgeBatches(found.triples, nodes, options, file=found).plan(3)]
    for first in (0, plans[0].num_batches // 2):
        in_memory, mapped = (list(plan.batches(first)) for plan in plans)
        assert len(in_memory) == plans[0].num_batches - first
        for ours, theirs in zip(in_memory, mapped, strict=True):
            assert (ours.index, ours.step, ours.ranges) == (theirs.index, theirs.step, theirs.ranges)
            assert torch.equal(triples[ours.positions], found.triples[theirs.positions])


@pytest.mark.parametrize("partitions", [5, 300])  # the sort is another one where buckets are more than 16 bits tell
def test_edges_are_sorted_alike_by_any_number_of_threads(tmp_path, monkeypatch, partitions):
    monkeypatch.setattr("headrace.train.links.edges._PIECE", 64)
    triples = torch.randint(0, 900, (1000, 3), generator=torch.Generator().manual_seed(1)).int()
    for threads in (1, 3, 8):
        found = BucketedEdges.write(tmp_path / "edges.bin", triples, num_nodes=900, partitions=partitions, threads=threads)
        bucket = triples[:, 0].long() // (900 // partitions) * partitions + triples[:, 2].long() // (900 // partitions)
        assert torch.equal(found.triples, triples[bucket.argsort(stable=True)])
        assert list(found.ends) == torch.bincount(bucket, minlength=partitions**2).cumsum(0).tolist()


def test_every_edge_comes_once_in_an_order_of_its_epoch():
    triples = torch.randint(0, 40, (500, 3), generator=torch.Generator().manual_seed(1))
    options = LinkOptions(partitions=8, buffer=4, order="comet", batch_size=30)
    seen = [torch.cat([batch.positions for batch in EdgeBatches(triples, 40, options).plan(epoch).batches()]) for epoch in (0, 1)]
    for positions in seen:
        assert torch.equal(positions.sort().values, torch.arange(500))
    assert not torch.equal(*seen)


@pytest.mark.parametrize("order", ["beta", "comet", "best", "hilbert", "hilbert_symmetric"])
def test_bytes_of_an_epoch_are_those_of_the_formula(tmp_path, order):
    triples = torch.randint(0, 800, (2000, 3), generator=torch.Generator().manual_seed(1)).remainder(torch.tensor([800, 2, 800]))
    data = hr.Dataset(hr.Graph.from_edges([], [], 800), extra={"train": triples}, info={"num_relations": 2})
    options = disk(epochs=2, threads=1, order=order, dim=602)
    result = link(data, options, out=tmp_path / "run")
    size, deal = slot_bytes(options, nodes=800, state=1), EdgeBatches(triples, 800, options)
    loads = [deal.plan(epoch).order.swaps for epoch in range(2)]
    if order == "best":
        assert loads == [orders.fewest_swaps(16, 4)] * 2
    assert result.disk["bytes_read"] == (4 + sum(loads)) * size
    assert result.disk["bytes_written"] == sum(loads) * size
    assert result.disk["edge_bytes"] == 2 * triples.nbytes
