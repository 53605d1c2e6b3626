"""Link prediction: batches of edges with negatives that are no edges, and an encoder that scores them."""

import torch

import headrace as hr

torch.manual_seed(0)
data = hr.generate.community(nodes=5_000, edges=60_000, classes=8, features=32, seed=0)
loader = hr.loader.LinkNeighborLoader(
    data, [10, 5], neg_sampling={"mode": "binary", "filter": True}, batch_size=4096, shuffle=True, seed=0
)
convs = torch.nn.ModuleList([hr.nn.SAGEConv(32, 32), hr.nn.SAGEConv(32, 16)])
optimizer = torch.optim.Adam(convs.parameters(), lr=0.01)

for batch in loader:
    x = convs[0](batch.x, batch.blocks[1]).relu()
    x = convs[1](x, batch.blocks[0])  # one row per seed: batch.seeds are the ends of the edges
    score = (x[batch.edge_label_index[0]] * x[batch.edge_label_index[1]]).sum(-1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(score, batch.edge_label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{batch} of {len(batch.edge_label)} links, loss {loss.item():.3f}")
print(f"negatives that are edges all the same: {loader.edges_left}")
