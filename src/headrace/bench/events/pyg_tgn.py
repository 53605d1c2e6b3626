"""PyG's TGN as its example puts it together: `TGNMemory`, `LastNeighborLoader`, `TransformerConv`, one random negative an event."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from headrace.bench.measure import wait_for
from headrace.graph import EventStream
from headrace.train.measure import average_precision


class PygTgn:
    """Trains on the events before `end`; events of a batch see those of earlier batches."""

    def __init__(
        self, stream: EventStream, end: int, *, batch_size: int, hidden: int, neighbors: int, rate: float, device: torch.device
    ) -> None:
        from torch_geometric.nn import TGNMemory, TransformerConv
        from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator, LastNeighborLoader

        self.end, self.batch_size, self.device, self.total = end, batch_size, device, len(stream)
        self.src, self.dst, self.time = (values.long().to(device) for values in (stream.src, stream.dst, stream.time))
        features = torch.zeros(len(stream), 1) if stream.edge_x is None else stream.edge_x.float()
        self.features, width = features.to(device), features.shape[1]
        self.destinations = self.dst.unique()
        message = IdentityMessage(width, hidden, hidden)
        self.memory: Any = TGNMemory(stream.num_nodes, width, hidden, hidden, message, LastAggregator()).to(device)
        edge_dim = width + hidden
        self.conv: Any = TransformerConv(hidden, hidden // 2, heads=2, dropout=0.1, edge_dim=edge_dim).to(device)
        self.scores = nn.ModuleList([nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)]).to(device)
        parameters = [*self.memory.parameters(), *self.conv.parameters(), *self.scores.parameters()]
        self.optimizer = torch.optim.Adam({id(p): p for p in parameters}.values(), lr=rate)
        self.last: Any = LastNeighborLoader(stream.num_nodes, size=neighbors, device=device)
        self.place = torch.empty(stream.num_nodes, dtype=torch.int64, device=device)
        self.generator = torch.Generator(device).manual_seed(0)

    def epoch(self) -> float:
        """Train one epoch; returns its seconds."""
        begin = perf_counter()
        self.memory.train()
        self.conv.train()
        self.memory.reset_state()
        self.last.reset_state()
        for first in range(0, self.end, self.batch_size):
            self.optimizer.zero_grad()
            true, false = self._logits(first, min(first + self.batch_size, self.end))
            loss = nn.functional.softplus(-true).mean() + nn.functional.softplus(false).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.memory.detach()
        wait_for(self.device)
        return perf_counter() - begin

    @torch.no_grad()
    def test_ap(self, first: int) -> float:
        """Average precision of the events from `first` on, after an epoch: the stream goes on where it ended."""
        self.memory.eval()
        self.conv.eval()
        logits, labels = [], []
        for begin in range(self.end, self.total, self.batch_size):
            end = min(begin + self.batch_size, self.total)
            tested = torch.arange(begin, end) >= first
            for scores, label in zip(self._logits(begin, end), (True, False), strict=True):
                logits.append(scores.cpu()[tested])
                labels.append(torch.full_like(logits[-1], label, dtype=torch.bool))
        precision = average_precision(torch.cat(logits), torch.cat(labels))
        assert precision is not None  # half of the pairs are true
        return precision

    def _logits(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        src, dst, time, features = (values[begin:end] for values in (self.src, self.dst, self.time, self.features))
        drawn = torch.randint(len(self.destinations), (end - begin,), generator=self.generator, device=self.device)
        negative = self.destinations[drawn]
        nodes, edges, events = self.last(torch.cat([src, dst, negative]).unique())
        self.place[nodes] = torch.arange(len(nodes), device=self.device)
        rows, updated = self.memory(nodes)
        age = self.memory.time_enc((updated[edges[0]] - self.time[events]).to(rows.dtype))
        rows = self.conv(rows, edges, torch.cat([age, self.features[events]], dim=1))
        source, target, out = self.scores
        hidden = source(rows[self.place[src]])
        true, false = (out((hidden + target(rows[self.place[ends]])).relu()).squeeze(1) for ends in (dst, negative))
        self.memory.update_state(src, dst, time, features)
        self.last.insert(src, dst)
        return true, false
