"""Link prediction through a GraphSAGE encoder: in memory, and on disk with neighbors from the partitions that are in memory."""

import tempfile
from pathlib import Path

import torch

import headrace as hr

# People of five towns, who mostly know people of their own town.
data = hr.generate.community(nodes=300, edges=6000, classes=5, features=4, seed=1)
shared = {"dim": 16, "encoder": "sage", "fanout": (10,), "epochs": 3, "batch_size": 200, "negatives": 50, "init": 0.1}

result = hr.train.link(data, hr.train.LinkOptions(**shared))
print(f"in memory: {result.test['ranking']} {result.test['measure']} MRR {result.test['mrr']:.3f}")

# `rows` are what was trained; `encoded` is what the network makes of a row and its neighbors, which the decoder compares.
scores = result.encoded.rows @ result.encoded.gather(torch.tensor([7]))[0][0]
print("person 7 may know", scores.topk(4).indices.tolist())

with tempfile.TemporaryDirectory() as folder:
    options = hr.train.LinkOptions(**shared, storage="disk", partitions=8, buffer=4, order="comet", staleness=4)
    result = hr.train.link(data, options, out=Path(folder) / "run")
    print(f"on disk: {result.test['ranking']} {result.test['measure']} MRR {result.test['mrr']:.3f}")
    hr.train.export(Path(folder) / "run", Path(folder) / "people.npy", format="npy")
