"""PyG's single steps for plain edges: the operations of its `propagate`, one after the other, without what it has between them.

On a graph of thirty nodes a third of the time of a layer's forward pass goes into looking for hooks, sizes and kinds of edges. What
is computed here are PyG's numbers, by the same operations in the same order.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Ends:
    """Both ends of the edges of an `edge_index`, and the nodes that messages are summed for."""

    def __init__(self, edge_index: Tensor, *, flipped: bool) -> None:
        first, second = edge_index.unbind(0)
        self.source, self.index = (second, first) if flipped else (first, second)
        self.flipped = flipped
        self._sources = self._targets = -1  # known once inputs were seen

    @property
    def count(self) -> int:
        """How many nodes messages are summed for."""
        return self._targets if self._targets >= 0 else self._sources

    def given(self, names: tuple[str, ...], inputs: dict[str, Any]) -> dict[str, Any] | None:
        """What a step takes, by PyG's names: `x_j` is `x` at the sources of the edges, `x_i` at their targets.

        None where the sizes do not follow from the inputs, or an id is not one of their rows, of which PyG says what is wrong.
        """
        found: dict[str, Any] = {}
        try:
            for name in names:
                end = name[-2:]
                if end == "_j":
                    found[name] = self._sources_of(inputs[name[:-2]])
                elif end == "_i" and name != "size_i":
                    found[name] = self._targets_of(inputs[name[:-2]])
                else:
                    found[name] = inputs.get(name)
        except (IndexError, RuntimeError, TypeError):
            return None
        if self.count < 0:
            return None
        for name in names:
            if name == "index":
                found[name] = self.index
            elif name in ("size_i", "dim_size"):
                found[name] = self.count
        return found

    def _sources_of(self, value: Any) -> Tensor:
        if not isinstance(value, Tensor):
            value, _ = self._pair(value)
        self._sources = _same(self._sources, value)
        lifted: Tensor = value.index_select(0, self.source)
        return lifted

    def _targets_of(self, value: Any) -> Tensor:
        if not isinstance(value, Tensor):
            _, value = self._pair(value)
        self._targets = _same(self._targets, value)
        lifted: Tensor = value.index_select(0, self.index)
        return lifted

    def _pair(self, value: Any) -> tuple[Any, Any]:
        """Of sources and of targets, whatever the direction is; turned round PyG counts the first of them."""
        source, target = value
        self._sources, self._targets = _same(self._sources, source), _same(self._targets, target)
        if self.flipped and self._sources != self._targets:
            raise TypeError
        return source, target


def _same(known: int, rows: Any) -> int:
    count = len(rows)  # a TypeError where there are none, as where sizes differ
    if known not in (-1, count):
        raise TypeError
    return count


def scattered(messages: Tensor, index: Tensor, count: int, reduce: str) -> Tensor:
    """The sum, mean or maximum of the messages of each node.  # [edges, ...] -> [count, ...]"""
    if reduce == "max":
        out = messages.new_zeros((count, *messages.shape[1:]))
        return out.scatter_reduce_(0, _beside(index, messages), messages, reduce="amax", include_self=False)
    out = messages.new_zeros((count, *messages.shape[1:])).scatter_add_(0, _beside(index, messages), messages)
    if reduce != "mean":
        return out
    degrees = messages.new_zeros(count).scatter_add_(0, index, messages.new_ones(len(index))).clamp_(min=1)
    return out / _beside(degrees, out)


def _beside(values: Tensor, rows: Tensor) -> Tensor:
    """A number a row, as wide as the rows."""
    return values.view(-1, *(1,) * (rows.dim() - 1)).expand_as(rows)
