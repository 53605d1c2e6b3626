"""Checks that data can be trained on, before a run begins."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headrace._memory import require_memory
from headrace.graph import Dataset
from headrace.train.nodes.options import NodeOptions

_SPLITS = ("train", "val", "test")
_CHUNK = 1 << 18  # rows looked at a time
_MOST = 8 << 30  # bytes of features that are all looked at; of more, every so many rows


def check_node_data(data: Dataset, *, rows: bool = True, own_rows: bool = False) -> None:
    """Raise ValueError unless `data` has features (but for `own_rows`), labels that fit, and a training split to learn from.

    Without `rows` the features themselves are not looked at: they are on disk, and `check_pieces` reads them.
    """
    if data.x is None and not own_rows:
        raise ValueError("this dataset has no features: node classification needs x")
    if data.y is None:
        raise ValueError("this dataset has no labels: node classification needs y")
    if data.x is not None and data.x.dim() != 2:
        raise ValueError(f"features must be a row per node; x has shape {list(data.x.shape)}")
    if data.x is not None and not data.x.dtype.is_floating_point:
        raise ValueError(f"features must be floating-point numbers, not {data.x.dtype}: convert x with .float()")
    for name in _SPLITS:
        _check_split(data, name)
    _check_labels(data)
    if rows and data.x is not None:
        check_pieces(lambda begin, end, step: data.x[begin:end:step], data.x)  # type: ignore[index]


def check_own_rows(options: NodeOptions) -> None:
    """Raise ValueError where the options ask something of features, and nodes have none."""
    if options.storage != "memory":
        raise ValueError(f"this dataset has no features, and learned rows are in memory: leave out storage {options.storage}")
    if options.features != "as_is":
        raise ValueError(f"nodes have no features that could be scaled: leave out features {options.features}")
    if options.capture == "always" or options.share == "ranks":
        name = "capture" if options.capture == "always" else "share ranks"
        raise ValueError(f"nodes have no features, and rows of their own do not go with {name}: leave it out")


def check_model_size(data: Dataset, options: NodeOptions) -> None:
    """ValueError where the weights of the model that the options describe, with gradients, take more memory than there is."""
    hidden, depth = options.hidden, options.depth
    weights = hidden * (data.num_features + data.num_classes + (depth - 2) * hidden) if depth > 1 else 0
    rows = data.num_nodes * hidden * (depth > 1) if options.full_batch else 0
    weights += data.num_nodes * hidden if data.x is None else 0
    require_memory(8 * weights + 4 * rows, f"a model with {depth} layers and hidden {hidden}", "lower hidden or layers")


def _check_split(data: Dataset, name: str) -> None:
    ids = data.splits.get(name)
    if ids is None or len(ids) == 0:
        if name == "train":
            state = "empty" if ids is not None else "missing"
            sizes = ", ".join(f"{n} ({len(i)})" for n, i in data.splits.items()) or "none"
            raise ValueError(
                f"the split 'train' is {state}: there is nothing to learn from (splits: {sizes}). Name the nodes to learn from: "
                "headrace import with --split-column, or Dataset(splits=)"
            )
        if ids is not None:
            raise ValueError(f"the split {name!r} is empty: give it nodes, or leave it out")
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= data.num_nodes:
        raise ValueError(f"the split {name!r} holds ids from {low} to {high}, but there are nodes 0 to {data.num_nodes - 1}")


def _check_labels(data: Dataset) -> None:
    y = data.y
    assert y is not None
    if y.dim() == 2:
        for name in (n for n in _SPLITS if n in data.splits and y.dtype != torch.bool):
            values = y[data.splits[name]]
            if bool(((values != 0) & (values != 1)).any()):
                raise ValueError(f"labels of several columns must be 0 or 1, and those of split {name!r} are not")
        return
    if y.dtype.is_floating_point:
        raise ValueError(f"labels must be class numbers, not {y.dtype}")
    classes = data.num_classes
    for name in _SPLITS:
        if name not in data.splits:
            continue
        ids = data.splits[name]
        labels = y[ids]
        wrong = ((labels < 0) | (labels >= classes)).nonzero().flatten()
        if len(wrong):
            node = int(ids[wrong[0]])
            raise ValueError(
                f"labels out of range: {len(wrong)} nodes of split {name!r} have labels that are not from 0 to {classes - 1} "
                f"(node {node} has {int(y[node])})"
            )


def check_pieces(read: Callable[[int, int, int], Tensor], like: Tensor, *, rows: int = _CHUNK) -> None:
    """Raise ValueError unless the rows that `read(begin, end, step)` gives, `rows` at a time, are finite: as many as `like` has."""
    step = max(1, -(-like.nbytes // _MOST))
    for begin in range(0, len(like), rows):
        check_rows(read(begin, min(begin + rows, len(like)), step), begin, step)


def check_rows(part: Tensor, begin: int, step: int = 1) -> None:
    """Raise ValueError unless rows of features, every `step`-th node's from `begin` on, are finite."""
    if bool(torch.isfinite(part.float().sum())):
        return
    bad = ~torch.isfinite(part)
    if bool(bad.any()):
        row, column = (int(i) for i in bad.nonzero()[0])
        raise ValueError(f"features must be finite: x[{begin + row * step}, {column}] is {float(part[row, column])}")


def check_weights(data: Dataset, model: nn.Module, *, sampled: bool) -> None:
    """Raise ValueError where a model would use a graph's edge weights in validation but not in its sampled batches."""
    uses = any(getattr(module, "wants_degree", False) for module in model.modules())
    if sampled and uses and data.graph.weight is not None:
        raise ValueError("sampled batches carry no edge weights, which gcn would use: train with full_batch, or without weights")
