"""A PyG model and script with two lines changed: the loader's import, and `accelerate`. Needs torch-geometric, not pyg-lib."""

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from headrace.loader import NeighborLoader  # was: from torch_geometric.loader import NeighborLoader
from headrace.pyg import accelerate

torch.manual_seed(0)
nodes, edges = 2_000, 30_000
data = Data(
    x=torch.randn(nodes, 16),
    edge_index=torch.randint(0, nodes, (2, edges)),
    y=torch.randint(0, 4, (nodes,)),
)
loader = NeighborLoader(data, num_neighbors=[10, 5], input_nodes=torch.arange(512), batch_size=128, shuffle=True)
model = GraphSAGE(16, 32, num_layers=2, out_channels=4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
print(accelerate(model))

for batch in loader:
    out = model(batch.x, batch.edge_index)[: batch.batch_size]
    loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{batch.num_nodes} nodes, {batch.num_edges} edges, loss {loss.item():.3f}")
