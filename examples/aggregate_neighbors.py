"""One mean-aggregation layer over a whole graph, forward and backward, with no E x d tensor anywhere."""

import torch

import headrace as hr

data = hr.generate.community(nodes=20_000, edges=400_000, classes=8, features=32)
weight = torch.randn(32, 8, requires_grad=True)

averaged = hr.kernels.aggregate(data.x @ weight, data.graph.indptr, data.graph.indices, reduce="mean", reverse=data.graph.reverse())
loss = torch.nn.functional.cross_entropy(averaged, data.y)
loss.backward()
print(f"loss {loss.item():.3f}, gradient norm {weight.grad.norm().item():.4f}")
