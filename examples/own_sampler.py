"""A sampler of one's own: neighbors are the nodes that short random walks visit most (PinSage, Ying et al., KDD 2018)."""

import torch

import headrace as hr


class WalkSampler(hr.sample.Sampler):
    """Takes, in each hop, the `fanouts[h]` nodes that `walks` walks of `length` steps along in-edges visit most."""

    def __init__(self, graph, fanouts, *, walks=16, length=2, seed=0):
        self.graph, self.fanouts, self.walks, self.length, self.seed = graph, fanouts, walks, length, seed
        self.degrees = graph.degrees()

    def sample(self, seeds, epoch=0, batch=0, **_):
        draw = hr.sample.batch_generator(self.seed, epoch, batch)  # so that a batch depends on these numbers alone
        hops = hr.sample.Hops(seeds)
        for fanout in self.fanouts:
            rows, visited = self.walk(hops.frontier, draw)
            pairs, visits = torch.stack([rows, visited]).unique(dim=1, return_counts=True)
            order = visits.argsort(descending=True, stable=True)
            rows, visited = pairs[:, order[pairs[0, order].argsort(stable=True)]]  # row by row, the most visited first
            first = torch.searchsorted(rows, rows)
            taken = torch.arange(len(rows)) - first < fanout
            hops.add(rows[taken], visited[taken])
        return hops.sample()

    def walk(self, nodes, draw):
        """All that walks from each node visit: the position of the node, and the node that is visited."""
        rows = torch.arange(len(nodes)).repeat_interleave(self.walks)
        at, visits = nodes[rows], []
        for _ in range(self.length):
            alive = self.degrees[at] > 0
            rows, at = rows[alive], at[alive]
            step = (torch.rand(len(at), generator=draw) * self.degrees[at]).long()
            at = self.graph.indices[self.graph.indptr[at] + step].long()
            visits.append((rows, at))
        return torch.cat([rows for rows, _ in visits]), torch.cat([at for _, at in visits])


torch.manual_seed(0)
data = hr.generate.community(nodes=5_000, edges=100_000, classes=8, features=32, seed=0)
sampler = WalkSampler(data.graph, [8, 4])
loader = hr.loader.NeighborLoader(data, input_nodes="train", neighbor_sampler=sampler, batch_size=128, shuffle=True)
model = hr.nn.GNN(32, 64, 8, layers=2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for batch in loader:  # sampled ahead, in threads
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch), batch.y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {len(loader)} batches, loss {loss.item():.3f}")
