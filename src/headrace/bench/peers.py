"""Other systems, if they are installed: how each is given the same graph and asked for the same thing."""

from __future__ import annotations

import importlib.util
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from headrace.graph import Dataset

Sampled = tuple[int, int]  # edges, nodes


@cache
def pyg_backend() -> str | None:
    """What PyG would sample with here: pyg-lib, torch-sparse, or nothing."""
    if importlib.util.find_spec("torch_geometric") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch_geometric.typing as pyg
    return "pyg-lib" if pyg.WITH_PYG_LIB else "torch-sparse" if pyg.WITH_TORCH_SPARSE else None


def has_pyg() -> bool:
    """Whether PyG is installed: its layers need no binaries."""
    return importlib.util.find_spec("torch_geometric") is not None


@cache
def has_dgl() -> bool:
    """Whether DGL is installed and its binaries load."""
    if importlib.util.find_spec("dgl") is None:
        return False
    try:
        import dgl  # noqa: F401
    except Exception:  # its binaries are tied to torch versions, and say so in many ways
        return False
    return True


def pyg_data(data: Dataset) -> Any:
    """The dataset as a PyG `Data`. Edges are sorted by target, so PyG need not sort them (`is_sorted=True`)."""
    from torch_geometric.data import Data

    return Data(x=data.x, y=data.y, edge_index=data.graph.edge_index(), num_nodes=data.num_nodes)


def pyg_sampler(data: Dataset, fanouts: list[int]) -> Callable[[Tensor], Sampled]:
    """PyG's own sampler, as its loader calls it."""
    from torch_geometric.data import Data
    from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

    graph = Data(edge_index=data.graph.edge_index(), num_nodes=data.num_nodes)
    sampler = NeighborSampler(graph, num_neighbors=fanouts, is_sorted=True)

    def sample(seeds: Tensor) -> Sampled:
        out = sampler.sample_from_nodes(NodeSamplerInput(None, seeds))
        return len(out.row), len(out.node)

    return sample


def dgl_graph(data: Dataset) -> Any:
    """The graph in DGL, in the one layout its sampler and its sum need."""
    import dgl

    csc = (data.graph.indptr, data.graph.indices.long(), torch.empty(0, dtype=torch.int64))
    return dgl.graph(("csc", csc), num_nodes=data.num_nodes).formats("csc")


def dgl_sampler(data: Dataset, fanouts: list[int]) -> Callable[[Tensor], Sampled]:
    """DGL's block sampler."""
    import dgl

    graph = dgl_graph(data)
    sampler = dgl.dataloading.NeighborSampler(fanouts[::-1])  # DGL names the seeds' fanout last

    def sample(seeds: Tensor) -> Sampled:
        nodes, _, blocks = sampler.sample_blocks(graph, seeds)
        return sum(b.num_edges() for b in blocks), len(nodes)

    return sample


class Training(Protocol):
    """A system that trains: an epoch at a time, with its times by part and its weights as `0.lin_l.weight`, ..."""

    def epoch(self) -> None: ...

    def parts(self) -> dict[str, float]: ...

    def weights(self) -> dict[str, Tensor]: ...


class _Timed:
    """A training that keeps its seconds by part, epoch by epoch."""

    def __init__(self) -> None:
        self.times: list[dict[str, float]] = []

    def begin(self) -> None:
        self.times.append({})
        self.last = perf_counter()

    def mark(self, part: str) -> None:
        now = perf_counter()
        self.times[-1][part] = self.times[-1].get(part, 0.0) + now - self.last
        self.last = now

    def update(self, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """The second half of a step, whose forward ends here."""
        self.mark("forward")
        loss.backward()  # type: ignore[no-untyped-call]
        self.mark("backward")
        optimizer.step()
        self.mark("step")

    def parts(self) -> dict[str, float]:
        """The median of each part over the epochs after the first."""
        later = self.times[1:] or self.times
        return {part: statistics.median(t[part] for t in later) for part in later[0]}


@dataclass(frozen=True)
class Sage:
    """The model and the steps that everybody trains."""

    fanouts: tuple[int, ...]
    batch: int
    hidden: int
    dropout: float
    rate: float


class PygTraining(_Timed):
    """PyG's own `GraphSAGE` and loader, cut down layer by layer as its documentation advises (trim_to_layer)."""

    def __init__(self, data: Dataset, weights: dict[str, Tensor], sage: Sage) -> None:
        from torch_geometric.loader import NeighborLoader
        from torch_geometric.nn import GraphSAGE

        super().__init__()
        self.model: Any = GraphSAGE(data.num_features, sage.hidden, len(sage.fanouts), data.num_classes, dropout=sage.dropout)
        self.model.load_state_dict(weights)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=sage.rate)
        self.loader: Any = NeighborLoader(
            pyg_data(data),
            list(sage.fanouts),
            input_nodes=data.splits["train"],
            batch_size=sage.batch,
            shuffle=True,
            is_sorted=True,
        )

    def rows(self, batch: Any) -> Tensor:
        """The model's rows of a batch's seeds, as in evaluation."""
        self.model.eval()
        out: Tensor = self._forward(batch)
        self.model.train()
        return out

    def epoch(self) -> None:
        self.begin()
        for batch in self.loader:
            self.mark("wait")  # its loader samples and gathers here: without workers, which slow it down (peers_cpu)
            self.optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(self._forward(batch), batch.y[: batch.batch_size])
            self.update(loss, self.optimizer)

    def weights(self) -> dict[str, Tensor]:
        return {name.removeprefix("convs."): w for name, w in self.model.state_dict().items()}

    def _forward(self, batch: Any) -> Tensor:
        sizes = {"num_sampled_nodes_per_hop": batch.num_sampled_nodes, "num_sampled_edges_per_hop": batch.num_sampled_edges}
        out: Tensor = self.model(batch.x, batch.edge_index, **sizes)[: batch.batch_size]
        return out


class DglTraining(_Timed):
    """DGL's `SAGEConv` on its sampled blocks."""

    def __init__(self, data: Dataset, weights: dict[str, Tensor], sage: Sage) -> None:
        import dgl

        super().__init__()
        assert data.x is not None
        assert data.y is not None
        self.x, self.y, self.seeds, self.batch = data.x, data.y, data.splits["train"], sage.batch
        self.graph = dgl_graph(data)
        self.sampler = dgl.dataloading.NeighborSampler(list(sage.fanouts)[::-1])
        widths = [data.num_features, *[sage.hidden] * (len(sage.fanouts) - 1), data.num_classes]
        self.convs: Any = torch.nn.ModuleList([dgl.nn.SAGEConv(widths[i], widths[i + 1], "mean") for i in range(len(sage.fanouts))])
        with torch.no_grad():
            conv: Any
            for i, conv in enumerate(self.convs):
                conv.fc_neigh.weight.copy_(weights[f"convs.{i}.lin_l.weight"])
                conv.fc_self.weight.copy_(weights[f"convs.{i}.lin_r.weight"])
                conv.fc_self.bias.copy_(weights[f"convs.{i}.lin_l.bias"])
        self.dropout = torch.nn.Dropout(sage.dropout)
        self.optimizer = torch.optim.Adam(self.convs.parameters(), lr=sage.rate)

    def epoch(self) -> None:
        self.begin()
        for seeds in torch.split(self.seeds[torch.randperm(len(self.seeds))], self.batch):
            nodes, _, blocks = self.sampler.sample_blocks(self.graph, seeds)
            self.mark("wait")
            x = self.x[nodes]
            self.mark("gather")
            self.optimizer.zero_grad(set_to_none=True)
            for i, (conv, block) in enumerate(zip(self.convs, blocks, strict=True)):
                x = conv(block, x)
                if i + 1 < len(self.convs):
                    x = self.dropout(torch.relu(x))
            loss = torch.nn.functional.cross_entropy(x, self.y[seeds])
            self.update(loss, self.optimizer)

    def weights(self) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = {}
        for i, conv in enumerate(self.convs):
            weights[f"{i}.lin_l.weight"] = conv.fc_neigh.weight.detach()
            weights[f"{i}.lin_l.bias"] = conv.fc_self.bias.detach()
            weights[f"{i}.lin_r.weight"] = conv.fc_self.weight.detach()
        return weights
