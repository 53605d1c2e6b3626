"""GCN and GIN trained on a whole graph: ours, and PyG's in each of the forms it takes a graph in."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headrace.graph import Dataset
from headrace.loader import WholeBatch
from headrace.nn import GNN

EPOCHS = 200  # of a run, over which kept sums must pay: GNNAdvisor's
RATE = 0.01
Precision = Literal["fp32", "bf16"]
TYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """A model. GCN 2 x 16 and GIN 5 x 64 are GNNAdvisor's; the wider ones are of today."""

    kind: Literal["gcn", "gin"]
    layers: int
    hidden: int

    def __str__(self) -> str:
        return f"{self.kind.upper()} {self.layers} x {self.hidden}"

    def model(self, data: Dataset) -> GNN:
        """Ours, always with the same first weights."""
        torch.manual_seed(0)
        how: dict[str, Any] = {"layers": self.layers, "conv": self.kind, "dropout": 0.0, "input_dropout": 0.0}
        return GNN(data.num_features, self.hidden, data.num_classes, **how)

    def widths(self, data: Dataset) -> list[tuple[int, int]]:
        """Columns before and after each layer."""
        all_widths = [data.num_features, *[self.hidden] * (self.layers - 1), data.num_classes]
        return list(pairwise(all_widths))

    def sums(self, data: Dataset) -> list[int]:
        """Columns of the sums that a step cannot do without: none in the first layer, whose sums never change; in the others one
        forward and one back, at the smaller width (of GIN's first map)."""
        inner = [(wide, self.hidden if self.kind == "gin" else narrow) for wide, narrow in self.widths(data)]
        return [width for wide, narrow in inner[1:] for width in [min(wide, narrow)] * 2]

    def flop(self, data: Dataset) -> float:
        """Of a step's products: forward, for the weights and (but in the first layer) for the input."""
        total = 0.0
        for i, (wide, narrow) in enumerate(self.widths(data)):
            inner = self.hidden if self.kind == "gin" else narrow
            total += (2 if i == 0 else 3) * wide * inner + (3 * inner * narrow if self.kind == "gin" else 0)
        return 2.0 * data.num_nodes * total

    def sum_bytes(self, data: Dataset, element: int) -> float:
        """Moved by the sums of a step."""
        return sum(sum_bytes(data, width, element) for width in self.sums(data))


CASES = (Case("gcn", 2, 16), Case("gcn", 2, 128), Case("gin", 5, 64), Case("gcn", 3, 256))


def sum_bytes(data: Dataset, width: int, element: int) -> float:
    """Moved by one sum over all neighbors, every row read anew: 4 E + 8 N + N d s + E d s."""
    nodes, edges = data.num_nodes, data.num_edges
    return float(4 * edges + 8 * nodes + (nodes + edges) * width * element)


class Training:
    """A model that trains on a whole graph, a step at a time: forward, backward, Adam."""

    def __init__(
        self, model: nn.Module, forward: Callable[[], Tensor], data: Dataset, device: torch.device, precision: Precision = "fp32"
    ) -> None:
        assert data.y is not None
        self.model, self.forward, self.device, self.precision = model, forward, device, precision
        self.optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        train = data.splits.get("train", torch.arange(data.num_nodes))
        self.train, self.labels = train.to(device), data.y.cpu()[train].long().to(device)

    def step(self) -> Tensor:
        """One step; its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            rows = self.forward().index_select(0, self.train)
        loss = nn.functional.cross_entropy(rows.float(), self.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()


def ours(case: Case, batch: WholeBatch, precision: Precision = "fp32") -> Training:
    """Our model, trained as `headrace train node --full-batch` does."""
    model = case.model(batch.data).to(batch.device)
    return Training(model, lambda: model(batch), batch.data, batch.device, precision)


def whole(case: Case, data: Dataset, keep: Literal["auto", "never"] = "auto") -> WholeBatch:
    """What our model is given; `keep="never"` has it sum the features at every step."""
    return WholeBatch(data, case.layers, uses=EPOCHS, keep_sum=keep)


def pyg(case: Case, data: Dataset, device: torch.device, form: str, precision: Precision = "fp32") -> Training:
    """PyG's layers with the same first weights. `form` is one of `FORMS`; norms are computed once in each."""
    from torch_geometric.nn import GCNConv, GINConv

    assert data.x is not None
    edges, weight = FORMS[form](case, data, device, precision)
    x = data.x.to(device)
    convs = []
    for wide, narrow in case.widths(data):
        if case.kind == "gcn":
            convs.append(GCNConv(wide, narrow, normalize=False))  # FORMS has the norms
        else:
            hidden = case.hidden
            inner = nn.Sequential(nn.Linear(wide, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, narrow))
            convs.append(GINConv(inner))
    model = nn.ModuleList(convs)
    named = case.model(data).state_dict()
    model.load_state_dict({name.removeprefix("layers.").replace(".conv.", "."): value for name, value in named.items()})
    model = model.to(device)

    def forward() -> Tensor:
        rows = x
        for i, conv in enumerate(model):
            rows = conv(rows, edges) if weight is None else conv(rows, edges, weight)
            rows = rows.relu() if i + 1 < len(model) else rows
        return rows

    return Training(model, forward, data, device, precision)


def _edges(case: Case, data: Dataset, device: torch.device) -> tuple[Tensor, Tensor | None]:
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    edges = data.graph.edge_index().to(device)
    return gcn_norm(edges, None, data.num_nodes) if case.kind == "gcn" else (edges, None)


def _cached_edge_index(case: Case, data: Dataset, device: torch.device, precision: Precision) -> tuple[Any, Any]:
    from torch_geometric import EdgeIndex

    edges, weight = _edges(case, data, device)
    by_target = torch.argsort(edges[1], stable=True)  # the loops that the norm added come last
    nodes = data.num_nodes
    cached = EdgeIndex(edges[:, by_target], sparse_size=(nodes, nodes), sort_order="col").fill_cache_()
    return cached, None if weight is None else weight[by_target]


def _sparse(case: Case, data: Dataset, device: torch.device, precision: Precision) -> tuple[Any, Any]:
    edges, weight = _edges(case, data, device)
    order = torch.argsort(edges[1], stable=True)
    nodes, degree = data.num_nodes, torch.bincount(edges[1], minlength=data.num_nodes)
    begins = nn.functional.pad(degree.cumsum(0), (1, 0))
    values = torch.ones(len(order), device=device) if weight is None else weight[order]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        values = values.to(TYPES[precision])
        adjacency = torch.sparse_csr_tensor(begins, edges[0][order], values, (nodes, nodes), check_invariants=False)
    return adjacency, None


# The last two build messages of edges x features.
FORMS: dict[str, Callable[[Case, Dataset, torch.device, Precision], tuple[Any, Any]]] = {
    "torch.sparse CSR": _sparse,
    "edge_index": lambda case, data, device, _: _edges(case, data, device),
    "EdgeIndex": _cached_edge_index,
}


def check_losses(losses: list[float], expected: list[float], who: str, *, precision: Precision = "fp32") -> None:
    """The losses of the first steps agree, or nothing is timed."""
    tolerance = 2e-3 if precision == "fp32" else 5e-2
    for number, (a, b) in enumerate(zip(losses, expected, strict=True)):
        if not abs(a - b) <= tolerance * max(abs(b), 0.1):
            raise RuntimeError(f"in step {number} the loss of {who} is {a:.5f} and ours is {b:.5f}: nothing is timed")
