"""What every rank must know of the whole dataset, as each part has it in its `meta.json`."""

from __future__ import annotations

from typing import Any

from headrace.cluster.parts.owners import owners_entry
from headrace.graph import Dataset
from headrace.graph.saved.fingerprint import fingerprints
from headrace.store import HashOwners, TableOwners


def describe(data: Dataset, owners: HashOwners | TableOwners, *, by: str, columns: bool) -> dict[str, Any]:
    """The dataset and how it is cut, in plain values."""
    return {
        "parts": owners.ranks,
        "by": by,
        "columns": columns,
        "owners": owners_entry(owners),
        "num_nodes": data.num_nodes,
        "num_edges": data.num_edges,
        "num_features": data.num_features,
        "num_classes": data.num_classes,
        "feature_type": None if data.x is None else str(data.x.dtype).removeprefix("torch."),
        "multi_label": data.y is not None and data.y.dim() == 2,
        "split_sizes": {name: len(ids) for name, ids in data.splits.items()},
        "info": data.info,
        "fingerprint": fingerprints(data),
        "left_out": sorted(data.extra),
    }
