"""`LinkAsked`: what somebody has decided of a plan for link prediction; the rest is planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.pipeline.orders import ORDERS

Storage = Literal["device", "host", "disk"]
Place = Literal["host", "device"]
EXACT = 0  # staleness of one batch at a time


@dataclass(frozen=True)
class LinkAsked:
    """The options that the user fixed, under the names of `LinkOptions`; the plan decides those that are None."""

    storage: Storage | None = None
    partitions: int | None = None
    buffer: int | None = None
    buffer_on: Place | None = None
    order: str | None = None
    batch_size: int | None = None
    staleness: int | None = None

    def __post_init__(self) -> None:
        allowed = {"storage": ("device", "host", "disk"), "buffer_on": ("host", "device"), "order": tuple(ORDERS)}
        for name, values in allowed.items():
            value = getattr(self, name)
            if value is not None and value not in values:
                raise ValueError(f"{name} must be one of {', '.join(values)}, not {value!r}")
        for name, least in {"partitions": 3, "buffer": 2, "batch_size": 1, "staleness": EXACT}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        if self.partitions is not None and self.buffer is not None and self.buffer >= self.partitions:
            raise ValueError(f"buffer must be less than the {self.partitions} partitions, not {self.buffer}")

    @property
    def parts(self) -> bool:
        """Whether anything was said of partitions."""
        return self.partitions is not None or self.buffer is not None
