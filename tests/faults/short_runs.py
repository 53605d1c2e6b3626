"""Short training runs for a sanitizer to watch: nodes by SAGE and GAT, links in memory and on disk, an order, a sampler."""

import tempfile
from pathlib import Path

import torch

import headrace as hr
from headrace.graph.reorder.orders import rabbit
from headrace.train import LinkOptions, NodeOptions


def main() -> None:
    torch.set_num_threads(2)
    data = hr.generate.community(nodes=600, edges=6000, classes=4, features=24, seed=1)
    for model in ("sage", "gat"):
        hr.train.node(data, options=NodeOptions(model=model, hidden=16, fanout=(5, 3), epochs=1, batch_size=64))
    triples = hr.generate.knowledge(nodes=300, edges=3000, relations=5, seed=1)
    for decoder in ("complex", "distmult"):
        hr.train.link(triples, LinkOptions(dim=16, epochs=1, batch_size=500, negatives=50, decoder=decoder))
    with tempfile.TemporaryDirectory() as folder:
        hr.train.link(
            triples,
            LinkOptions(dim=16, epochs=1, batch_size=500, negatives=50, storage="disk", partitions=4, buffer=2),
            out=Path(folder) / "run",
        )
    rabbit(data.graph, threads=2)
    weighted = hr.Graph.from_edges(*data.graph.edge_index(), weight=torch.rand(data.num_edges))
    hr.sample.NeighborSampler(weighted, [5, 5], weighted=True, threads=2).sample(torch.arange(200))


if __name__ == "__main__":
    main()
