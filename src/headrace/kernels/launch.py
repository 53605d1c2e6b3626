"""How an aggregation is launched on a GPU: which kernel, and how its work is cut. Chosen by a pure function of graph and width.

GNNAdvisor (Wang et al., OSDI'21) lets graph and model decide the parameters of the kernel. So does this: mean degree, skew, width
and type choose a `Launch`, without a look at the device and without a trial in the middle of training.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal

import torch

Variant = Literal["row", "split", "window"]
_VARIANTS: tuple[Variant, ...] = ("row", "split", "window")


@dataclass(frozen=True)
class Launch:
    """One way to launch an aggregation. All sizes are powers of two, for Triton cuts tiles so.

    "row": a program takes `rows` rows and a block of `columns`, and reads `entries` neighbours of each at a time. "split": rows of
    more than `group` entries are cut into groups of that many, whose sums are added in order afterwards. "window": `window`
    rows share the neighbours they have in common, of which `entries` are read at a time.
    """

    variant: Variant = "row"
    group: int = 512
    columns: int = 128
    entries: int = 8
    warps: int = 2
    window: int = 16
    rows: int = 1
    stages: int = 3

    def __post_init__(self) -> None:
        if self.variant not in _VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(map(repr, _VARIANTS))}, not {self.variant!r}")
        for name in ("group", "columns", "entries", "warps", "window", "rows"):
            size = getattr(self, name)
            if size < 1 or size & (size - 1):
                raise ValueError(f"{name} must be a power of two, not {size}")
        if self.variant == "window" and self.window not in (16, 32):
            raise ValueError(f"window must be 16 or 32 rows, not {self.window}")
        if self.stages < 1:
            raise ValueError(f"stages must be at least 1, not {self.stages}")

    def packed(self) -> str:
        """As a string, which is what an operator takes."""
        return ",".join(map(str, astuple(self)))

    @classmethod
    def unpacked(cls, packed: str) -> Launch:
        """The launch that was packed."""
        variant, *sizes = packed.split(",")
        return cls(variant, *map(int, sizes))  # type: ignore[arg-type]


def launch_for(
    *,
    mean_degree: float,
    width: int,
    dtype: torch.dtype,
    max_degree: int | None = None,
    degree_cv: float | None = None,
    rho_w: float | None = None,
) -> Launch:
    """The launch for rows of `width` elements over a graph of these figures; None is not known.

    >>> launch_for(mean_degree=50, max_degree=20_000, width=100, dtype=torch.float32).variant
    'split'
    """
    columns = min(max(power_of_two(width), 16), 128)
    variant: Variant = "split" if max_degree is not None and max_degree > 4 * 512 else "row"
    return Launch(variant, columns=columns, entries=8, warps=2 if columns > 64 else 1)


def power_of_two(size: float) -> int:
    """The smallest that is not below `size`."""
    return 1 << max(int(-(-size // 1)) - 1, 0).bit_length()
