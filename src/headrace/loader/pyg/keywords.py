"""Keywords of torch's DataLoader and of PyG's loaders: which mean nothing here, and which are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

# Only one value of these is possible.
SHARED: dict[str, tuple[Any, ...]] = {
    "generator": (None,),
    "multiprocessing_context": (None,),
    "timeout": (0,),
    "pin_memory_device": ("",),
    "in_order": (True,),
}
_IGNORED = {"is_sorted", "filter_per_worker", "persistent_workers", "dataset", "collate_fn"}  # hints to worker processes


def refuse(others: dict[str, Any], *, loader: str, only: dict[str, tuple[Any, ...]]) -> None:
    """Raise for a keyword that `loader` does not have, or a value other than those in `only`: never ignore one silently."""
    for name, value in others.items():
        if name in _IGNORED:
            continue
        if name not in only:
            raise TypeError(f"{loader} has no keyword {name!r}")
        value = getattr(value, "value", value)  # PyG's enumerations
        if not is_one_of(value, only[name]):
            allowed = " or ".join(repr(v) for v in only[name])
            raise ValueError(f"{loader} does not support {name}={described(value)} (only {allowed})")


def is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Whether `value` is one of `allowed`. A tensor is none of them: it is not compared entry by entry."""
    return any(value is one for one in allowed) or (not hasattr(value, "shape") and any(value == one for one in allowed))


def described(value: Any, *, most: int = 80) -> str:
    """`value` for a message: arrays by their shape, others by their `repr`, cut after `most` characters."""
    if isinstance(value, Tensor) or hasattr(value, "shape"):
        return f"{type(value).__name__} of shape {tuple(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(described(part, most=most) for part in value)})"
    if isinstance(value, list | Mapping) and len(value) > 8:
        return f"{type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}..."


def subgraph_of(subgraph_type: Any, directed: bool, *, is_pyg: bool) -> str:
    """PyG's `subgraph_type` as a word: "directional", "bidirectional" or "induced", which `directed=False` means too."""
    kind = getattr(subgraph_type, "value", subgraph_type)
    if kind not in ("directional", "bidirectional", "induced"):
        raise ValueError(f"subgraph_type must be 'directional', 'bidirectional' or 'induced', not {described(kind)}")
    if not is_pyg and (kind != "directional" or not directed):
        asked = f"subgraph_type={kind!r}" if directed else "directed=False"
        raise ValueError(f"{asked} is for PyG objects: of a headrace graph, batches have the edges that were drawn")
    return str(kind) if directed else "induced"


def check_pair(data: Any, *, custom_cls: Any, device: Any = None, rows: Any = None) -> None:
    """Raise for what goes only with a pair of PyG's stores, or does not go with one."""
    if not isinstance(data, tuple):
        if custom_cls is not None:
            raise ValueError("custom_cls is for pairs (FeatureStore, GraphStore): batches of other data are of its own class")
    elif device is not None or rows is not None:
        raise ValueError("rows of a pair come from its FeatureStore, on the CPU: leave device and rows out, and move batches")
