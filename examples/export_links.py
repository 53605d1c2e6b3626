"""Embeddings of a small knowledge graph: planned, trained, looked at by name, and exported."""

import tempfile
from pathlib import Path

import numpy as np
import torch

import headrace as hr

plan = hr.plan.link_plan(86_054_151, 304_727_650, 100, memory=32 << 30, disk_rate=2e9)
print(f"Freebase86m in 32 GiB: {plan.storage}, {plan.buffer} of {plan.partitions} partitions, {plan.bytes / 1e9:.0f} GB an epoch")

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)

    # Relation 0 leads from person i to person i + 1, relation 1 to person i + 2.
    (folder / "people.txt").write_text("".join(f"person {i}\n" for i in range(100)))
    (folder / "relations.txt").write_text("is followed by\nis two before\n")
    head, relation = torch.arange(100).repeat(2), torch.arange(2).repeat_interleave(100)
    triples = torch.stack([head, relation, (head + relation + 1) % 100], dim=1)
    data = hr.Dataset(
        hr.Graph.from_edges(triples[:, 0], triples[:, 2], 100),
        extra={"train": triples},
        info={"num_relations": 2},
        names={"nodes": folder / "people.txt", "relations": folder / "relations.txt"},
    )
    options = hr.train.LinkOptions(decoder="complex", dim=32, epochs=60, batch_size=50, negatives=50, reciprocal=True)
    hr.train.link(data, options, out=folder / "run")

    nearest = hr.train.neighbors(folder / "run", "person 7", relation="is two before", k=3, data=data)
    print(f"{nearest.name} {nearest.relation_name}", [likely.name for likely in nearest.tails])

    files = hr.train.export(folder / "run", folder / "rows.npy", format="npy", data=data).files
    print(np.load(folder / "rows.npy").shape, "in", ", ".join(file.name for file in files))
