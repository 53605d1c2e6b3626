"""A PyG script with one import changed. Needs torch-geometric; pyg-lib is not needed."""

import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

from headrace.loader import NeighborLoader  # was: from torch_geometric.loader import NeighborLoader

torch.manual_seed(0)
nodes, edges = 2_000, 30_000
data = Data(
    x=torch.randn(nodes, 16),
    edge_index=torch.randint(0, nodes, (2, edges)),
    y=torch.randint(0, 4, (nodes,)),
)
loader = NeighborLoader(data, num_neighbors=[10, 5], input_nodes=torch.arange(512), batch_size=128, shuffle=True)
convs = torch.nn.ModuleList([SAGEConv(16, 32), SAGEConv(32, 4)])
optimizer = torch.optim.Adam(convs.parameters(), lr=0.01)

for batch in loader:
    x = convs[0](batch.x, batch.edge_index).relu()
    x = convs[1](x, batch.edge_index)[: batch.batch_size]
    loss = torch.nn.functional.cross_entropy(x, batch.y[: batch.batch_size])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{batch.num_nodes} nodes, {batch.num_edges} edges, loss {loss.item():.3f}")
