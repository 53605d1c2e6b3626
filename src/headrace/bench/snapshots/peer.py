"""The peer of `headrace bench snapshots`: cells as PyG Temporal has them, a convolution of PyG for each gate and snapshot.

Its package wants torch-sparse and torch-scatter, which are not installed as wheels everywhere; what its cells do takes
torch-geometric alone. Names of parameters are those of ours, so that weights load. Groups over one graph are a batch, as its
`TGCN2` takes them; where nodes come and go, a snapshot is a step over the rows that it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.snapshots import Group
from headrace.train.snapshots.windows import Windows


def _gcn(inner: int, outer: int) -> nn.Module:
    from torch_geometric.nn import GCNConv

    conv: nn.Module = GCNConv(inner, outer)
    return conv


def _cheb(inner: int, outer: int) -> nn.Module:
    from torch_geometric.nn import ChebConv

    conv: nn.Module = ChebConv(inner, outer, 2)
    return conv


class PeerTGCN(nn.Module):
    """T-GCN: three convolutions of x, each beside the state into a linear map."""

    parts = 1

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.conv_z, self.conv_r, self.conv_h = (_gcn(inner, outer) for _ in range(3))
        self.linear_z, self.linear_r, self.linear_h = (nn.Linear(2 * outer, outer) for _ in range(3))

    def forward(self, x: Tensor, edges: Tensor, weight: Tensor | None, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (hidden,) = state
        z = torch.sigmoid(self.linear_z(torch.cat([self.conv_z(x, edges, weight), hidden], dim=-1)))
        r = torch.sigmoid(self.linear_r(torch.cat([self.conv_r(x, edges, weight), hidden], dim=-1)))
        candidate = torch.tanh(self.linear_h(torch.cat([self.conv_h(x, edges, weight), hidden * r], dim=-1)))
        return (z * hidden + (1 - z) * candidate,)


class PeerGCLSTM(nn.Module):
    """GC-LSTM: a Chebyshev filter of the state for each of four gates."""

    parts = 2

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        for gate in "ifco":
            self.add_module(f"conv_{gate}", _cheb(outer, outer))
            self.register_parameter(f"W_{gate}", nn.Parameter(torch.empty(inner, outer)))
            self.register_parameter(f"b_{gate}", nn.Parameter(torch.zeros(1, outer)))

    def forward(self, x: Tensor, edges: Tensor, weight: Tensor | None, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, memory = state

        def gate(name: str) -> Tensor:
            filtered = getattr(self, f"conv_{name}")(hidden, edges, weight)
            made: Tensor = x @ getattr(self, f"W_{name}") + filtered + getattr(self, f"b_{name}")
            return made

        take, forget = torch.sigmoid(gate("i")), torch.sigmoid(gate("f"))
        memory = forget * memory + take * torch.tanh(gate("c"))
        return torch.sigmoid(gate("o")) * torch.tanh(memory), memory


PEERS: dict[str, type[Any]] = {"tgcn": PeerTGCN, "gclstm": PeerGCLSTM}


class PeerTraining:
    """Steps over the same groups, from the same weights, in one process."""

    def __init__(self, model: str, windows: Windows, weights: dict[str, Tensor], hidden: int, lr: float) -> None:
        data = windows.snapshots
        self.windows, self.data = windows, data
        self.cell = PEERS[model](data.num_features, hidden)
        self.head = nn.Linear(hidden, windows.horizon)
        self.cell.load_state_dict({name[5:]: value for name, value in weights.items() if name.startswith("cell.")})
        self.head.load_state_dict({name[5:]: value for name, value in weights.items() if name.startswith("head.")})
        self.optimizer = torch.optim.Adam([*self.cell.parameters(), *self.head.parameters()], lr=lr)
        self.edges = [data.own_graph(at).edge_index().long() for at in range(len(data))]
        self.weight = [data.own_graph(at).weight for at in range(len(data))]
        self.hidden = hidden

    def step(self, groups: Sequence[Group]) -> float:
        """One update; the loss before it."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.data.nodes is None and self.data.same_as(len(self.data) - 1) == 0:
            total = self._loss(groups)
            total.backward()  # type: ignore[no-untyped-call]
            loss = float(total.detach())
        else:  # a group's activations at a time
            loss = 0.0
            for group in groups:
                part = self._loss([group]) / len(groups)
                part.backward()  # type: ignore[no-untyped-call]
                loss += float(part.detach())
        self.optimizer.step()
        return loss

    def _loss(self, groups: Sequence[Group]) -> Tensor:
        data, x = self.data, self.data.x
        assert x is not None
        state = tuple(torch.zeros(len(groups), data.num_nodes, self.hidden) for _ in range(self.cell.parts))
        for place in range(groups[0].window):
            times = [group.first + place for group in groups]
            edges, weight = self.edges[times[0]], self.weight[times[0]]
            if data.nodes is None:
                state = self.cell(torch.stack([x[at] for at in times]), edges, weight, state)
                continue
            there = len(data.nodes[times[0]])  # the first ones
            new = self.cell(x[times[0]], edges, weight, tuple(part[0, :there] for part in state))
            state = tuple(torch.cat([part, old[0, there:]]).unsqueeze(0) for part, old in zip(new, state, strict=True))
        forecast = self.head(state[0])
        values, counts = self.windows.targets(list(groups))
        each: Tensor = ((forecast - values).square() * counts).sum((1, 2)) / counts.sum((1, 2)).clamp_min(1.0)
        return each.mean()
