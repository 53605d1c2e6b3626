"""A PyG script over a HeteroData with one import changed. Needs torch-geometric; pyg-lib is not needed."""

import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from headrace.loader import NeighborLoader  # was: from torch_geometric.loader import NeighborLoader

torch.manual_seed(0)
papers, authors = 2_000, 800
data = HeteroData()
data["paper"].x, data["author"].x = torch.randn(papers, 16), torch.randn(authors, 16)
data["paper"].y = torch.randint(0, 4, (papers,))
data["author", "writes", "paper"].edge_index = torch.stack([torch.randint(0, n, (8_000,)) for n in (authors, papers)])
data["paper", "written_by", "author"].edge_index = data["author", "writes", "paper"].edge_index.flip(0)
data["paper", "cites", "paper"].edge_index = torch.randint(0, papers, (2, 20_000))

fanouts = {edge_type: [8, 4] for edge_type in data.edge_types}
loader = NeighborLoader(data, fanouts, input_nodes=("paper", torch.arange(512)), batch_size=128, shuffle=True)
convs = torch.nn.ModuleList(HeteroConv({t: SAGEConv(16, 16) for t in data.edge_types}) for _ in fanouts["paper", "cites", "paper"])
optimizer = torch.optim.Adam(convs.parameters(), lr=0.01)

for batch in loader:
    x, edges = batch.x_dict, batch.edge_index_dict
    for layer, conv in enumerate(convs):
        x, edges, _ = trim_to_layer(layer, batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict, x, edges)
        x = conv(x, edges)
    size = batch["paper"].batch_size
    loss = torch.nn.functional.cross_entropy(x["paper"][:size], batch["paper"].y[:size])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print({kind: batch[kind].num_nodes for kind in batch.node_types}, f"loss {loss.item():.3f}")
