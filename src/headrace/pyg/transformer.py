"""`TransformerConv`: attention by products of queries and keys."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor

from headrace.graph.topology.edge_rows import EdgeRows
from headrace.pyg.attention import dropped, head_dots, head_sums, row_softmax
from headrace.pyg.layer import Fast, own_rows
from headrace.pyg.linear import mapped
from headrace.pyg.sums import segment_sum, take_targets


class TransformerConv(Fast, pyg.TransformerConv):  # type: ignore[misc]
    """PyG's `TransformerConv`. Products and weighted sums are kernels; per edge and head one number is stored."""

    pyg = pyg.TransformerConv
    reduces = ("sum", "add")
    takes = ("query_i", "key_j", "value_j", "edge_attr", "index", "ptr", "size_i")
    least_on_gpu = 1 << 28

    def forward(self, x: Any, edge_index: Any, edge_attr: Any = None, return_attention_weights: Any = None) -> Any:
        # propagate_type: (query: Tensor, key:Tensor, value: Tensor, edge_attr: OptTensor)
        source, own = (x, x) if isinstance(x, Tensor) else x
        usual = return_attention_weights is None and own is not None and self._fits(edge_attr, edge_index, source)
        rows = self.rows_for(edge_index, source, own) if usual else None
        if rows is None or torch.is_autocast_enabled(source.device.type):
            return super().forward(x, edge_index, edge_attr, return_attention_weights)
        own = own_rows(own, rows)
        out = self._attended(source, own, rows.whole(), edge_attr)
        out = out.reshape(-1, self.heads * self.out_channels) if self.concat else out.mean(dim=1)
        if not self.root_weight:
            return out
        skipped = mapped(self.lin_skip, own)
        if self.lin_beta is None:
            return out + skipped
        beta = self.lin_beta(torch.cat([out, skipped, out - skipped], dim=-1)).sigmoid()
        return beta * skipped + (1 - beta) * out

    def _attended(self, source: Tensor, own: Tensor, rows: EdgeRows, edge_attr: Tensor | None) -> Tensor:
        shape = -1, self.heads, self.out_channels
        query = mapped(self.lin_query, own).view(shape) / math.sqrt(self.out_channels)
        key, value = mapped(self.lin_key, source).view(shape), mapped(self.lin_value, source).view(shape)
        scores = head_dots(query, key, rows)
        if edge_attr is None:
            shares = dropped(row_softmax(scores, rows), rows, self.dropout, self.training)
            return head_sums(value, shares, rows)
        attributes = mapped(self.lin_edge, rows.of_edges(edge_attr)).view(shape)
        scores = scores + (take_targets(query, rows) * attributes).sum(-1)
        shares = dropped(row_softmax(scores, rows), rows, self.dropout, self.training)
        return head_sums(value, shares, rows) + segment_sum(attributes * shares.unsqueeze(-1), rows)

    def _fits(self, edge_attr: Any, edge_index: Any, source: Any) -> bool:
        if self.lin_edge is None or edge_attr is None:
            return self.lin_edge is None and edge_attr is None
        if not isinstance(edge_attr, Tensor) or not isinstance(edge_index, Tensor) or not isinstance(source, Tensor):
            return False
        return edge_attr.dim() == 2 and len(edge_attr) == edge_index.shape[-1] and edge_attr.dtype == source.dtype
