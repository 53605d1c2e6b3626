"""How an aggregation is launched on a GPU: which kernel, and how its work is cut. Chosen by a pure function of graph and width.

GNNAdvisor (Wang et al., OSDI'21) lets graph and model decide the parameters of the kernel. So does this: mean degree, skew, width
and type choose a `Launch`, without a look at the device and without a trial in the middle of training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

Variant = Literal["row", "split", "window"]
_VARIANTS: tuple[Variant, ...] = ("row", "split", "window")


@dataclass(frozen=True)
class Launch:
    """One way to launch an aggregation. All sizes are powers of two, for Triton cuts tiles so.

    "row": a program takes `rows` rows and a block of `columns`, and reads `entries` neighbors of each at a time. "split": rows of
    more than `group` entries are cut into groups of that many, whose sums are added in order afterwards. "window": `window`
    rows share the neighbors they have in common, of which `entries` are read at a time.

    `programs` bounds how many programs of a sum or mean work at a time, each going from block to block, so that other kernels find
    room beside it; 0 launches one for every block. It changes no bit. (Adding up the groups of heavy rows is short and has none.)
    """

    variant: Variant = "row"
    group: int = 512
    columns: int = 128
    entries: int = 8
    warps: int = 2
    window: int = 16
    rows: int = 1
    stages: int = 3
    programs: int = 0

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
        if self.programs < 0:
            raise ValueError(f"programs must be at least 1, or 0 for one for every block, not {self.programs}")

    def packed(self) -> str:
        """This launch as a string, the form in which an operator takes it."""
        sizes = (self.group, self.columns, self.entries, self.warps, self.window, self.rows, self.stages, self.programs)
        return f"{self.variant},{','.join(str(size) for size in sizes)}"

    @classmethod
    def unpacked(cls, packed: str) -> Launch:
        """The launch that was packed."""
        variant, *sizes = packed.split(",")
        return cls(variant, *map(int, sizes))  # type: ignore[arg-type]


Table = Mapping[str, Launch]  # bucket -> how rows of it are launched, heavy ones and windows aside

_WIDTHS = (1, 16, 32, 64, 128, 256)
_DEGREES = ("few", "alike", "many")
_FEW = 24.0  # neighbors in the mean
_HEAVY = 2048  # entries below which a row is never cut
_TURN = 0.7e-6  # seconds of one turn of a program's loop, which waits for ids and then for rows
_RATE = 4e12  # bytes per second of the whole device
_SECOND = 2e-4  # seconds that a heaviest row must take for it to pay to cut it: those of the launch that adds the parts up
_WINDOW_REUSE = {2: 2.5}  # by bytes of an element: from which reuse in a window its products pay; exact ones of fp32 never did


def bucket_of(*, mean_degree: float, width: int, dtype: torch.dtype, alike: bool = False) -> str:
    """What launches are tabled by: bytes of an element, width, and whether neighbors are few, alike in number, or many.

    >>> bucket_of(mean_degree=50, width=100, dtype=torch.float32)
    '4 bytes, width 128, degree many'
    """
    wide = next((w for w in _WIDTHS if width <= w), _WIDTHS[-1])
    degree = "few" if mean_degree <= _FEW else "alike" if alike else "many"
    return f"{dtype.itemsize} bytes, width {wide}, degree {degree}"


def launch_for(
    *,
    mean_degree: float,
    width: int,
    dtype: torch.dtype,
    max_degree: int | None = None,
    degree_cv: float | None = None,
    rho_w: float | None = None,
    rows: int | None = None,
    table: Table | None = None,
) -> Launch:
    """The launch for rows of `width` elements over a graph of these figures; None is not known.

    `degree_cv` is the standard deviation of the degrees over their mean, and `rho_w` how many rows of a window share a
    neighbor on average (entries over distinct neighbors). Heavy rows are cut where one program would be at the heaviest for more
    than a tenth of the time of all `rows`, and for longer than another launch takes. `table` is by default what was measured on an
    H200.

    >>> launch_for(mean_degree=50, max_degree=20_000, width=100, dtype=torch.float32).variant
    'split'
    """
    alike = degree_cv is not None and degree_cv <= 0.5
    plain = (H200 if table is None else table)[bucket_of(mean_degree=mean_degree, width=width, dtype=dtype, alike=alike)]
    if rho_w is not None and width >= 16 and rho_w >= _WINDOW_REUSE.get(dtype.itemsize, float("inf")):
        columns = min(max(power_of_two(width), 16), 256 // dtype.itemsize)
        return Launch("window", columns=columns, entries=16, warps=4, stages=2, window=16)
    if max_degree is not None and max_degree > _HEAVY and not alike:
        heaviest = max_degree / plain.entries * _TURN
        everything = 0.0 if rows is None else rows * mean_degree * width * dtype.itemsize / _RATE
        if heaviest > max(0.1 * everything, _SECOND):
            return replace(plain, variant="split", group=256 if plain.rows > 1 else 1024)
    return plain


def power_of_two(size: float) -> int:
    """The smallest that is not below `size`."""
    return 1 << max(int(-(-size // 1)) - 1, 0).bit_length()


# (bytes, width) -> columns, entries, stages, where degrees are many and differ: a program per row. More than one warp was slower
# throughout, and so was more than one stage where rows are not aligned to 16 bytes: the copies of a pipeline need that.
_MEASURED = {
    (2, 1): (1, 32, 1),
    (2, 16): (16, 16, 1),
    (2, 32): (32, 16, 1),
    (2, 64): (64, 8, 3),
    (2, 128): (128, 16, 1),
    (2, 256): (128, 16, 1),
    (4, 1): (1, 32, 1),
    (4, 16): (16, 16, 1),
    (4, 32): (32, 8, 3),
    (4, 64): (64, 8, 3),
    (4, 128): (128, 8, 1),
    (4, 256): (64, 8, 2),
    (8, 1): (1, 32, 1),
    (8, 16): (16, 8, 1),
    (8, 32): (32, 8, 1),
    (8, 64): (64, 4, 1),
    (8, 128): (64, 4, 1),
    (8, 256): (64, 4, 1),
}
_LINE = 256  # bytes of each of them at most
_TILE = 2048  # bytes of x that a program of several rows has under way: four reads of 16 bytes a thread


def _measured() -> dict[str, Launch]:
    """Where degrees are few or alike, several rows share a program: it has as many reads under way, and there are fewer of them."""
    table = {}
    for (size, width), (columns, entries, stages) in _MEASURED.items():
        block = min(columns, _LINE // size)
        shared = Launch("row", columns=block, entries=2, rows=min(_TILE // (2 * block * size), 16), warps=1, stages=1)
        differ = Launch("row", columns=columns, entries=entries, warps=1, stages=stages)
        for name in _DEGREES:
            table[f"{size} bytes, width {width}, degree {name}"] = differ if name == "many" else shared
    return table


H200: Table = _measured()
