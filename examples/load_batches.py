"""Sampled mini-batches from a generated graph, the same whatever the threads."""

import headrace as hr

data = hr.generate.community(nodes=20_000, edges=400_000, classes=8, features=32, seed=0)
loader = hr.loader.NeighborLoader(data, [10, 5], input_nodes="train", batch_size=256, shuffle=True, seed=0)

for batch in loader:
    # batch.blocks: one bipartite CSR per hop, the seeds' first; batch.x: features of batch.n_id; batch.y: labels of the seeds
    print(batch, tuple(batch.x.shape), batch.y.shape[0])

for stage in loader.stage_times:
    print(f"{stage.name}: busy {stage.busy:.3f} s, starved {stage.starved:.3f} s, held {stage.held:.3f} s")
print(loader.memory())
