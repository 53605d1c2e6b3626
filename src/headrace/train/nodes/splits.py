"""Several official splits of one dataset: masks in `extra`, of which a run takes one, or each in turn."""

from __future__ import annotations

from dataclasses import replace

from headrace.graph import Dataset
from headrace.train.nodes.options import NodeOptions

_NAMES = ("train", "val", "test")


def num_splits(data: Dataset) -> int:
    """How many official splits the dataset has: rows of `extra["train_masks"]`, or one."""
    masks = data.extra.get("train_masks")
    return 1 if masks is None or masks.dim() != 2 or masks.shape[1] != data.num_nodes else len(masks)


def split_numbers(data: Dataset, options: NodeOptions) -> list[int]:
    """The splits that a run trains on, in turn."""
    count = num_splits(data)
    if options.split == "all":
        return list(range(count))
    number = int(options.split)
    if number >= count:
        known = f"splits 0 to {count - 1}" if count > 1 else "one split, number 0"
        raise ValueError(f"split is {number}, and this dataset has {known}")
    return [number]


def with_split(data: Dataset, number: int) -> Dataset:
    """The dataset with one of its official splits; a part that has no masks (a common test split) is in all of them."""
    masks = {name: data.extra[f"{name}_masks"] for name in _NAMES if f"{name}_masks" in data.extra}
    if num_splits(data) == 1:
        return data
    return replace(data, splits=data.splits | {name: several[number].nonzero().flatten() for name, several in masks.items()})


def over_splits(options: NodeOptions, count: int) -> NodeOptions:
    """The options with a repeat for each of `count` splits, or as many rounds of them as the repeats that were asked for."""
    if count == 1:
        return options
    if options.repeats % count and options.repeats != 1:
        raise ValueError(
            f"split all trains on {count} splits in turn: repeats must be a multiple of {count}, not {options.repeats}"
        )
    return replace(options, repeats=max(options.repeats, count))
