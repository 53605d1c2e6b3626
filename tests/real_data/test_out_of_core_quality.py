"""Partitions, negatives of resident nodes and batches in flight cost no quality: FB15k-237 against the exact run in memory."""

import statistics

import pytest

import headrace as hr
from headrace.train import LinkOptions, link

RECIPE = {"decoder": "complex", "dim": 50, "epochs": 15, "batch_size": 1000, "negatives": 200, "optimizer": "adagrad", "threads": 2}
ON_DISK = {"storage": "disk", "partitions": 16, "buffer": 4, "order": "comet", "staleness": 16}


@pytest.mark.slow
def test_comet_with_a_quarter_resident_ranks_as_in_memory(data_root, tmp_path):
    data = hr.load("fb15k237", data_root)
    in_memory, on_disk = [], []
    for seed in range(3):
        in_memory.append(link(data, LinkOptions(**RECIPE, seed=seed)).test["mrr"])
        run = link(data, LinkOptions(**RECIPE, **ON_DISK, seed=seed), out=tmp_path / f"run{seed}")
        on_disk.append(run.test["mrr"])
    assert statistics.mean(in_memory) > 0.2, in_memory
    assert statistics.mean(in_memory) - statistics.mean(on_disk) <= 0.005, (in_memory, on_disk)
