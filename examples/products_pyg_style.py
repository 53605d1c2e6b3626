"""GraphSAGE on a products-like graph as a PyG user writes it, with one import changed. Needs torch-geometric, not pyg-lib.

At the published size, on a GPU if torch sees one: python products_pyg_style.py --scale 1 --hidden 256 --batch-size 1024
"""

import argparse
from itertools import pairwise
from time import perf_counter

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import headrace as hr
from headrace.loader import NeighborLoader  # was: from torch_geometric.loader import NeighborLoader

parser = argparse.ArgumentParser()
parser.add_argument("--scale", type=float, default=0.005)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--hidden", type=int, default=64)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
args = parser.parse_args()


class SAGE(torch.nn.Module):
    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        widths = [features, hidden, hidden, classes]
        self.convs = torch.nn.ModuleList(SAGEConv(*pair) for pair in pairwise(widths))

    def forward(self, x, edge_index):
        for conv in self.convs[:-1]:
            x = F.dropout(conv(x, edge_index).relu(), 0.5, self.training)
        return self.convs[-1](x, edge_index)


torch.manual_seed(0)
products = hr.generate.preset("products", scale=args.scale)
data = Data(x=products.x, edge_index=products.graph.edge_index(), y=products.y)
# device= is the one keyword that PyG's loader does not have: on a GPU, batches are sampled and gathered there. Without it
# they are made on the CPU, and batch.to(device) moves them, as ever.
common = {"num_neighbors": [15, 10, 5], "batch_size": args.batch_size, "device": args.device}
train = NeighborLoader(data, input_nodes=products.splits["train"], shuffle=True, **common)
validation = NeighborLoader(data, input_nodes=products.splits["val"], **common)

model = SAGE(products.num_features, args.hidden, products.num_classes).to(args.device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(args.epochs):
    model.train()
    begin = perf_counter()
    for batch in train:
        batch = batch.to(args.device)
        optimizer.zero_grad()
        rows = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(rows, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
    last = loss.item()  # waits for the GPU
    seconds = perf_counter() - begin

    model.eval()
    right = total = 0
    with torch.no_grad():
        for batch in validation:
            batch = batch.to(args.device)
            rows = model(batch.x, batch.edge_index)[: batch.batch_size]
            right += int((rows.argmax(dim=-1) == batch.y[: batch.batch_size]).sum())
            total += batch.batch_size
    print(f"epoch {epoch}: {seconds:.2f} s, loss {last:.3f}, validation accuracy {right / total:.3f}")
print(f"best possible accuracy {products.info['best_accuracy']:.3f}: the rest of the labels is noise")
