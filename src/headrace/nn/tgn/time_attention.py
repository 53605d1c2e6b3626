"""Attention of a node over its recent events, a layer of TGN and TGAT."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from headrace.kernels import attend_time, dropout, seed_for
from headrace.nn.tgn.time_encoding import TimeEncoding

Score = Literal["leaky", "scaled"]  # leaky_relu(q.k) with slope 0.2 (TGL, DistTGL), or q.k / sqrt(channels) (TGN, TransformerConv)
Output = Literal["norm", "skip"]  # LayerNorm(relu(W [sum || own])) (TGL, DistTGL), or sum + W own (TransformerConv)
_SLOPE = 0.2


class TimeAttention(nn.Module):
    """Multi-head attention with queries from [h_v || phi(0)], keys and values from [h_u || e_uv || phi(dt)].

    Rossi et al., "Temporal graph networks", 2020; parameters have the names of TGL's `TransfomerAttentionLayer`. The query of
    TransformerConv has no time: with `output="skip"` it is that of PyG's TGN, and `w_q` has no column for it.

    The map of the keys is applied to the query and that of the values to the sum (`kernels.attend_time`), each a product with
    a row per target. Biases of both are the map of one more column, a cosine that is always 1.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        time: TimeEncoding,
        edge_channels: int = 0,
        heads: int = 2,
        dropout: float = 0.0,
        score: Score = "leaky",
        output: Output = "norm",
    ) -> None:
        super().__init__()
        if heads < 1 or out_channels < 1 or out_channels % heads:
            raise ValueError(f"out_channels must be a multiple of heads, at least 1, not {out_channels} with {heads} heads")
        if score not in ("leaky", "scaled") or output not in ("norm", "skip"):
            raise ValueError(f'score must be "leaky" or "scaled" and output "norm" or "skip", not {score!r} and {output!r}')
        if output == "skip" and in_channels == 0:
            raise ValueError('output="skip" makes queries of rows alone: in_channels must be at least 1, or output be "norm"')
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {dropout}")
        self.in_channels, self.out_channels, self.edge_channels, self.heads = in_channels, out_channels, edge_channels, heads
        self.dropout, self.score, self.output, self.time = dropout, score, output, time
        times = len(time.weight)
        far = in_channels + edge_channels + times
        self.w_q = nn.Linear(in_channels + (times if output == "norm" else 0), out_channels)
        self.w_k = nn.Linear(far, out_channels)
        self.w_v = nn.Linear(far, out_channels)
        self.w_out = nn.Linear(in_channels + (out_channels if output == "norm" else 0), out_channels)
        self.layer_norm = nn.LayerNorm(out_channels) if output == "norm" else None

    def forward(
        self,
        x: Tensor,
        own: Tensor,
        indptr: Tensor,
        indices: Tensor,
        dt: Tensor,
        *,
        edge_x: Tensor | None = None,
        edge_id: Tensor | None = None,
    ) -> Tensor:
        """New rows of the targets, of which `own` has the present ones.  # [n, in], [rows, in] -> [rows, out]

        Row i of the CSR has the events of target i: `indices` are rows of `x`, `dt` how long ago they were. `edge_x` is as in
        `kernels.attend_time`.
        """
        edges = 0 if edge_x is None else edge_x.shape[1]
        if edges != self.edge_channels:
            raise ValueError(f"edge_x has {edges} columns, the layer was made for edge_channels={self.edge_channels}")
        rate = self.dropout if self.training else 0.0
        query = self._query(own)
        nothing = self.time.weight.new_zeros(1)
        sums = attend_time(
            torch.bmm(query, self._by_head(self.w_k)).transpose(0, 1),
            indptr,
            indices,
            dt,
            x=x,
            time_weight=torch.cat([self.time.weight, nothing]),
            time_bias=torch.cat([self.time.bias, nothing]),
            edge_x=edge_x,
            edge_id=edge_id,
            slope=_SLOPE if self.score == "leaky" else 1.0,
            dropout=rate,
            seed=seed_for(x) if rate else 0,
        )
        values = torch.bmm(sums.transpose(0, 1), self._by_head(self.w_v).transpose(1, 2)).transpose(0, 1).flatten(1)
        if self.layer_norm is None:
            skipped: Tensor = values + self.w_out(own)
            return skipped
        rows = self.w_out(torch.cat([values, own], dim=1))
        rows = dropout(rows, rate, relu=True) if rate else rows.relu()
        normed: Tensor = self.layer_norm(rows)
        return normed

    def _query(self, own: Tensor) -> Tensor:
        """# [rows, in] -> [heads, rows, channels]"""
        weight: Tensor = self.w_q.weight
        bias: Tensor = self.w_q.bias
        if self.output == "norm":  # the time encoding of 0 is the same for all rows: its product belongs to the bias
            bias = torch.addmv(bias, weight[:, self.in_channels :], self.time.bias.cos())
            weight = weight[:, : self.in_channels]
        query = torch.addmm(bias, own, weight.t())
        if self.score == "scaled":
            query = query / math.sqrt(self.out_channels // self.heads)
        return query.view(len(own), self.heads, -1).transpose(0, 1)

    def _by_head(self, linear: nn.Linear) -> Tensor:
        """The map of [far || 1] for each head.  # -> [heads, channels, far + 1]"""
        return torch.cat([linear.weight, linear.bias[:, None]], dim=1).view(self.heads, -1, linear.in_features + 1)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, heads={self.heads}, edge_channels={self.edge_channels}, score={self.score}"
        )
