"""Layers with PyG's parameters: load a PyG state_dict, get the same rows, without a message per edge."""

import torch
from torch_geometric.nn import GATConv

import headrace as hr

data = hr.generate.community(nodes=2_000, edges=40_000, classes=4, features=16, seed=0)
theirs = GATConv(16, 8, heads=4)
ours = hr.nn.GATConv(16, 8, heads=4)
ours.load_state_dict(theirs.state_dict())

with torch.no_grad():
    expected = theirs(data.x, data.graph.edge_index())
    rows = ours(data.x, data.graph)  # or ours(data.x, edge_index), or ours(x, block) of a sampled batch
print(f"largest difference {float((expected - rows).abs().max()):.1e}")
