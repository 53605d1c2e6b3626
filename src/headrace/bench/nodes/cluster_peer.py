"""The peer of `headrace bench cluster`: what a user of torch writes today, features by row on all ranks and a DDP model."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headrace.graph import Dataset
from headrace.loader import NeighborLoader, Shard
from headrace.ranks import Ranks
from headrace.sample import Block
from headrace.train.nodes.options import NodeOptions


@dataclass(frozen=True)
class Turn:
    """What a rank measured of one epoch."""

    seconds: float  # of its steps
    sent: float  # bytes, in its steps
    sent_after: float  # bytes, when they had ended
    loss: float  # of the first step, the mean over ranks


class PlainSage(nn.Module):
    """GraphSAGE with mean, of torch's own operations; `weights` are those of a `headrace.nn.GNN`."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        depth = sum(name.endswith("lin_l.weight") for name in weights)
        self.left = nn.ModuleList(_linear(weights, f"layers.{i}.conv.lin_l") for i in range(depth))
        self.right = nn.ModuleList(_linear(weights, f"layers.{i}.conv.lin_r") for i in range(depth))

    def forward(self, x: Tensor, blocks: Sequence[Block]) -> Tensor:
        for left, right, block in zip(self.left, self.right, reversed(blocks), strict=True):
            x = left(_mean(block, x[: block.num_src])) + right(x[: block.num_dst])
            if left is not self.left[-1]:
                x = F.relu(x)
        return x


class RowFetch:
    """Node v's row is on rank v % ranks: ids go to their owners, and rows come back."""

    def __init__(self, x: Tensor, device: torch.device) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.rows = x[self.rank :: self.ranks].clone().to(device)
        self.sent = 0  # bytes to other ranks

    def __call__(self, ids: Tensor) -> Tensor:  # [n] -> [n, features]
        ids = ids.to(self.rows.device)
        owner = ids % self.ranks
        order = owner.argsort(stable=True)
        asked = torch.bincount(owner, minlength=self.ranks)
        wanted = self._exchange(asked, [1] * self.ranks, [1] * self.ranks).tolist()
        theirs = self._exchange(ids[order], asked.tolist(), wanted)
        rows = self._exchange(self.rows[theirs // self.ranks], wanted, asked.tolist())
        out = torch.empty_like(rows)
        out[order] = rows
        return out

    def _exchange(self, tensor: Tensor, sending: list[int], receiving: list[int]) -> Tensor:
        sent = tensor.cpu()  # gloo carries what is in host memory
        received = sent.new_empty((sum(receiving), *sent.shape[1:]))
        dist.all_to_all_single(received, sent, receiving, sending)
        self.sent += (len(sent) - sending[self.rank]) * sent[:1].nbytes
        return received.to(tensor.device)


class DistributedTraining:
    """Training by torch: the batches of ours, sampled by our loader, and all else as above."""

    def __init__(self, data: Dataset, weights: dict[str, Tensor], options: NodeOptions, ranks: Ranks) -> None:
        assert data.x is not None
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
        device = torch.device(options.device)
        self.fetch = RowFetch(data.x, device)
        self.loader = NeighborLoader(
            Dataset(data.graph, y=data.y),
            options.fanouts,
            data.splits["train"],
            batch_size=options.batch_size,
            shuffle=True,
            seed=options.seed,
            threads=options.threads,
            staleness=options.staleness,
            shard=Shard(ranks.rank, ranks.size, "empty"),
        )
        self.ranks = ranks
        self.model = DistributedDataParallel(PlainSage(weights).to(device))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=options.lr)
        self.parameters = sum(parameter.nbytes for parameter in self.model.parameters())

    def epoch(self) -> Turn:
        """All steps of an epoch."""
        before, losses, begin = self.fetch.sent, [], perf_counter()
        for batch in self.loader:
            rows = self.model(self.fetch(batch.n_id), batch.blocks)
            loss = F.cross_entropy(rows, batch.y.to(rows.device))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            losses.append(float(loss.detach()))
        seconds = perf_counter() - begin
        reduced = 2 * (self.ranks.size - 1) / self.ranks.size * self.parameters * len(losses)  # by a ring
        first = statistics.fmean(self.ranks.all_gather(losses[0]))
        return Turn(seconds, self.fetch.sent - before + reduced, 0.0, first)


def _mean(block: Block, x: Tensor) -> Tensor:
    """The mean over neighbors; torch has it as one operation on a CPU alone."""
    indptr, indices, shape = block.indptr.to(x.device), block.indices.to(x.device).long(), (block.num_dst, block.num_src)
    degrees = indptr.diff()
    weights = torch.ones(len(indices), device=x.device) if x.device.type == "cpu" else (1 / degrees).repeat_interleave(degrees)
    adjacency = torch.sparse_csr_tensor(indptr, indices, weights, shape, check_invariants=False)
    mean: Tensor = torch.sparse.mm(adjacency, x, "mean") if x.device.type == "cpu" else torch.sparse.mm(adjacency, x)
    return mean


def _linear(weights: dict[str, Tensor], name: str) -> nn.Linear:
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    return layer
