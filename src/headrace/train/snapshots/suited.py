"""Defaults of snapshot training that suit a dataset, in place of one set for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.train.snapshots.options import SnapshotOptions

# Window and horizon of a dataset's usual protocol; of los_loop also that windows lie within their part (Zhao et al., 2019).
_KNOWN: dict[str, dict[str, Any]] = {
    "los_loop": {"window": 12, "horizon": 3, "history": "part", "epochs": 15},
    "chickenpox_hungary": {"window": 4, "epochs": 20},
    "england_covid": {"window": 8, "epochs": 40},
    "twitter_tennis_rg17": {"window": 4, "epochs": 20},
    "bitcoin_otc": {"window": 4, "every": 1.2e6, "epochs": 10},
}


def suited_options(name: str, given: Mapping[str, Any]) -> SnapshotOptions:
    """The options that are `given`, and others that suit the dataset of this name.

    >>> from headrace.train.snapshots.suited import suited_options
    >>> options = suited_options("los_loop", {"hidden": 16})
    >>> options.hidden, options.window, options.horizon
    (16, 12, 3)
    """
    return SnapshotOptions(**{**_KNOWN.get(name, {}), **given})


def chosen_words(name: str, given: Mapping[str, Any]) -> str:
    """What `suited_options` chose otherwise than `SnapshotOptions` does, in words; empty if nothing."""
    usual = SnapshotOptions()
    known = {option: value for option, value in _KNOWN.get(name, {}).items() if option not in given}
    others = [(option, value) for option, value in known.items() if value != getattr(usual, option)]
    return ", ".join(f"{option} {value:g}" if isinstance(value, float) else f"{option} {value}" for option, value in others)
