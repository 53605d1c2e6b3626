"""Embeddings of a small knowledge graph: in memory, and on disk with a quarter of the rows in memory at a time."""

import tempfile
from pathlib import Path

import torch

import headrace as hr

# Relation r leads from person i to person i + r + 1.
torch.manual_seed(0)
head, relation = torch.arange(200).repeat(5), torch.arange(5).repeat_interleave(200)
triples = torch.stack([head, relation, (head + relation + 1) % 200], dim=1)[torch.randperm(1000)]
graph = hr.Graph.from_edges(triples[:, 0], triples[:, 2], 200)
splits = {"train": triples[:900], "valid": triples[900:950], "test": triples[950:]}
data = hr.Dataset(graph, extra=splits, info={"num_relations": 5})

options = hr.train.LinkOptions(decoder="complex", dim=32, epochs=30, batch_size=100, negatives=50, reciprocal=True)
result = hr.train.link(data, options)
print(f"in memory: {result.test['ranking']} {result.test['measure']} MRR {result.test['mrr']:.3f}")

question = result.decoder.query(result.rows.gather(torch.tensor([7]))[0], torch.tensor([2]))
scores = result.decoder.score(question[None], result.rows.rows[None])[0, 0]
print("relation 2 leads from 7 to", scores.argmax().item())

with tempfile.TemporaryDirectory() as folder:
    on_disk = hr.train.LinkOptions(
        decoder="complex",
        dim=32,
        epochs=30,
        batch_size=100,
        negatives=50,
        reciprocal=True,
        storage="disk",
        partitions=8,
        buffer=2,
        order="best",
        staleness=4,
    )
    result = hr.train.link(data, on_disk, out=Path(folder) / "run")
    print(f"on disk: {result.test['ranking']} {result.test['measure']} MRR {result.test['mrr']:.3f}")
