"""A store of one's own: features quantized to 8 bits, read by a cache and by a loader like any other rows.

A store sets `shape` and `dtype` and defines `gather`; `hr.store.BaseStore` has the rest. Here a row is 8-bit numbers and one scale,
a quarter of the memory of float32. What is used most stays in a cache at full width.
"""

import torch

import headrace as hr


class QuantizedRows(hr.store.BaseStore):
    dtype = torch.float32

    def __init__(self, rows: torch.Tensor) -> None:
        self.shape = rows.shape
        self.scale = rows.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
        self.quantized = (rows / self.scale).round().to(torch.int8)

    def gather(self, ids: torch.Tensor, *, out: torch.Tensor | None = None, check: bool = True) -> torch.Tensor:
        rows = torch.mul(self.quantized[ids], self.scale[ids])
        return rows if out is None else out.copy_(rows)

    @property
    def nbytes(self) -> int:
        return self.quantized.nbytes + self.scale.nbytes


data = hr.generate.community(nodes=5_000, edges=100_000, classes=8, features=128, seed=0)
rows = QuantizedRows(data.x)
print(f"{data.x.nbytes:,} bytes of features are {rows.nbytes:,} bytes quantized")

cached = hr.store.Cached(rows, capacity=0.2)
loader = hr.loader.NeighborLoader(data, [10, 5], input_nodes="train", batch_size=128, shuffle=True, rows=cached)
model = hr.nn.GNN(128, 64, 8, layers=2, conv="sage")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    right = 0
    for batch in loader:
        scores = model(batch)
        loss = torch.nn.functional.cross_entropy(scores, batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += int((scores.argmax(dim=1) == batch.y).sum())
    print(f"epoch {epoch}: accuracy {right / len(data.splits['train']):.2f}, hit rate {cached.use().hit_rate:.2f}")

worst = max(float((piece - data.x[begin : begin + len(piece)]).abs().max()) for begin, piece in rows.scan())
print(f"no feature is off by more than {worst:.3f}")
