"""Any module whose forward takes a batch can be trained: here one that walks the blocks itself."""

import torch
from torch import nn

import headrace as hr


class TwoLayers(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first = hr.nn.SAGEConv(features, 64, aggr="max")
        self.second = hr.nn.GATConv(64, classes, heads=4, concat=False)

    def forward(self, batch):
        of_seeds, of_neighbors = batch.blocks  # the seeds' hop first
        x = torch.relu(self.first(batch.x, of_neighbors))
        return self.second(x, of_seeds)  # a row per seed


data = hr.generate.community(nodes=5_000, edges=100_000, classes=8, features=32, seed=0)
options = hr.train.NodeOptions(fanout=(10, 5), epochs=5, batch_size=128, lr=0.01)
result = hr.train.node(data, options, model=TwoLayers(data.num_features, data.num_classes))
print(f"test accuracy {result.test_accuracy:.3f} over sampled neighbors")
