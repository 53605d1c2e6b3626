"""Keywords of PyG's loaders (and of torch's DataLoader below them) that ours does not have."""

from __future__ import annotations

from typing import Any

# Those that mean nothing here, or only one value of which is possible. Any other value is refused by name rather than silently
# ignored.
_ONLY: dict[str, tuple[Any, ...]] = {
    "subgraph_type": ("directional",),
    "neighbor_sampler": (None,),
    "directed": (True,),
    "custom_cls": (None,),
    "input_id": (None,),
    "sampler": (None,),
    "batch_sampler": (None,),
    "generator": (None,),
    "worker_init_fn": (None,),
    "multiprocessing_context": (None,),
    "timeout": (0,),
    "pin_memory_device": ("",),
    "in_order": (True,),
}
_IGNORED = {"is_sorted", "filter_per_worker", "persistent_workers", "dataset", "collate_fn"}  # hints to worker processes


def refuse(others: dict[str, Any]) -> None:
    """Raise on a keyword that is unknown, or known with another value than the one that is possible."""
    for name, value in others.items():
        if name in _IGNORED:
            continue
        if name not in _ONLY:
            raise TypeError(f"NeighborLoader has no keyword {name!r}")
        value = getattr(value, "value", value)  # PyG's enumerations
        if not any(value is allowed or value == allowed for allowed in _ONLY[name]):
            only = " or ".join(repr(v) for v in _ONLY[name])
            raise ValueError(f"NeighborLoader does not support {name}={value!r} (only {only})")
