"""`AttentionVertex`: the tensor work between the edges of two attention layers."""

from __future__ import annotations

from torch import Tensor, nn

from headrace.kernels import dropout
from headrace.nn import ByNode, Layer, SplitError


def by_node(layer: Layer) -> ByNode:
    """An attention layer cut by nodes; SplitError if it is none."""
    cut = layer.split().conv.by_node
    if cut is None:
        raise SplitError(f"{type(layer.conv).__name__} is no attention layer that is cut by nodes")
    return cut


class AttentionVertex(nn.Module):
    """The end of one attention layer and the projection of the next, for nodes whose attention is computed.

    The first task of an interval has features in place of the former layer, the last one has no next layer.

    >>> import headrace as hr, torch
    >>> layers = [hr.nn.Layer(hr.nn.GATConv(6, 2, heads=2), 6, 4), hr.nn.Layer(hr.nn.GATConv(4, 3), 4, 3)]
    >>> rows = AttentionVertex(None, layers[0])(x=torch.randn(5, 6))
    >>> {name: tuple(array.shape) for name, array in rows.items()}  # two heads, and a score for each in both roles
    {'sources': (5, 6), 'targets': (5, 2)}
    >>> sorted(AttentionVertex(*layers).learned)
    ['ended.conv.bias', 'projected.conv.att_dst', 'projected.conv.att_src', 'projected.conv.lin.weight']
    """

    def __init__(self, ended: Layer | None, projected: Layer | None) -> None:
        super().__init__()
        self.ended, self.projected = ended, projected

    prefix = ""

    @property
    def layer(self) -> Layer:
        """The one that is projected, or the last."""
        layer = self.projected or self.ended
        assert layer is not None
        return layer

    @property
    def learned(self) -> dict[str, Tensor]:
        """Parameters that it uses."""
        named: dict[str, Tensor] = {}
        for part, layer in (("ended", self.ended), ("projected", self.projected)):
            if layer is None:
                continue
            cut = by_node(layer)
            ends, edge = {f"conv.{name}" for name in cut.end_weights}, f"conv.{cut.edge_weight}"
            for name, weight in layer.named_parameters():
                in_end = name in ends or name.startswith("norm.")
                if name != edge and in_end == (part == "ended"):
                    named[f"{part}.{name}"] = weight
        return named

    @property
    def fixed(self) -> dict[str, Tensor]:
        """Buffers that it uses: none."""
        return {}

    @property
    def reads(self) -> tuple[str, ...]:
        """Arrays of rows that it needs."""
        if self.ended is None:
            return ("x",)
        return ("mixed",) if self.ended.skip is None else ("mixed", "skipped")

    def forward(
        self,
        x: Tensor | None = None,
        mixed: Tensor | None = None,
        skipped: Tensor | None = None,
        ids: Tensor | None = None,
        seed: int | None = None,
    ) -> dict[str, Tensor]:
        """What the next layer's edges need, or the rows of the last layer.

        x: features; or `mixed`: what attention gave, with the rows that went around it (`skipped`).
        ids, seed: of the one dropout in it, before the first layer or after the former one.
        """
        if self.ended is not None:
            assert mixed is not None
            rows = self.ended.finish(by_node(self.ended).end(mixed), skipped, ids=ids, seed=seed)
        else:
            assert x is not None
            rows, rate = x, self.layer.before
            if rate and self.training:
                rows = dropout(x, rate, seed=seed, rows=0 if ids is None else ids)
        if self.projected is None:
            return {"rows": rows}
        sources, targets = by_node(self.projected).project(rows)
        out = {"sources": sources, "targets": targets}
        return out if self.projected.skip is None else out | {"skipped": self.projected.skip(rows)}
