"""Defaults of link prediction that suit a dataset, in place of one set for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from headrace.graph import Dataset
from headrace.train.links.options import LinkOptions

_STEPS, _FEWEST, _MOST = 3000, 10, 50  # batches of a run whose epochs are left open, and bounds of its epochs
_NODES = 1_000_000  # above it, as much state as rows is no longer a small thing
# ComplEx as Lacroix et al. (2018) train it, with sampled negatives: MRR 0.317 on FB15k-237 in ten epochs, where LinkOptions() has
# 0.225; it takes three times as long, and twice the memory.
_KNOWLEDGE = {"reciprocal": True, "degree_fraction": 0.0, "optimizer": "adagrad", "init": 0.1}
_NEGATIVES = 500
_PENALTY = {"regularizer": "n3", "regularization": 0.02}


def suited_options(data: Dataset, chosen: Mapping[str, Any]) -> LinkOptions:
    """The options that were `chosen`, and others that suit the data: epochs by its size, what knowledge graphs are trained with.

    >>> import headrace as hr
    >>> options = suited_options(hr.load("facts"), {"dim": 32})
    >>> options.dim, options.regularizer, options.negatives
    (32, 'n3', 300)
    """
    asked = LinkOptions(**chosen)
    more: dict[str, Any] = {}
    edges = next((len(data.extra[name]) for name in ("train", "triples") if name in data.extra), data.num_edges)
    if "epochs" not in chosen:
        more["epochs"] = min(max(_STEPS * asked.batch_size // max(edges, 1), _FEWEST), _MOST)
    if _is_knowledge(data) and data.num_nodes <= _NODES and _is_usual(asked):
        more |= _KNOWLEDGE | {"negatives": min(_NEGATIVES, data.num_nodes)}
        more |= {} if chosen.keys() & _PENALTY.keys() else _PENALTY
    return LinkOptions(**{**more, **chosen})


def chosen_words(options: LinkOptions, chosen: Mapping[str, Any]) -> str:
    """What `suited_options` chose otherwise than `LinkOptions` does, in words; empty if nothing."""
    usual = LinkOptions()
    names = [field.name for field in fields(options) if field.name not in chosen]
    others = [name for name in names if getattr(options, name) != getattr(usual, name)]
    return ", ".join(f"{name} {getattr(options, name)}" for name in others)


def _is_knowledge(data: Dataset) -> bool:
    train = data.extra.get("train")
    return "triples" in data.extra or (train is not None and train.dim() == 2 and train.shape[1] >= 3)


def _is_usual(asked: LinkOptions) -> bool:
    """Whether rows are in memory, and scored by a product under a softmax."""
    in_memory = asked.storage == "device" and not asked.partitions and asked.row_type == "fp32" and not asked.memory
    return in_memory and asked.encoder == "none" and asked.loss == "softmax" and asked.decoder in ("auto", "complex", "distmult")
