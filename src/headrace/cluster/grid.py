"""`Grid`: which rank holds which columns of the features, and which ranks hold all of them together. Arithmetic alone."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.store import column_bounds


@dataclass(frozen=True)
class Grid:
    """Ranks in teams: the members of a team hold all columns, `held / ranks` of them each. Teams hold the same.

    held: of `ranks` slices, how many a rank holds (P3's cache of further slices). With 1 all ranks are one team; with all
    of them every rank is a team of its own.

    >>> grid = Grid(rank=5, ranks=8, held=2)
    >>> list(grid.members), grid.place, list(grid.replicas), grid.columns(10)
    ([4, 5, 6, 7], 1, [1, 5], (2, 5))
    """

    rank: int = 0
    ranks: int = 1
    held: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank must be from 0 to {self.ranks - 1}, not {self.rank}")
        if not 1 <= self.held <= self.ranks or self.ranks % self.held:
            fits = ", ".join(str(n) for n in range(1, self.ranks + 1) if self.ranks % n == 0)
            raise ValueError(f"slices held by a rank must divide the {self.ranks} ranks, and {self.held} does not: use {fits}")

    @property
    def size(self) -> int:
        """Ranks of a team."""
        return self.ranks // self.held

    @property
    def members(self) -> range:
        """The ranks of this team."""
        begin = self.rank - self.place
        return range(begin, begin + self.size)

    @property
    def place(self) -> int:
        """The number of this rank in its team, and of its slice."""
        return self.rank % self.size

    @property
    def replicas(self) -> range:
        """The ranks that hold this slice, of all teams."""
        return range(self.place, self.ranks, self.size)

    def columns(self, features: int, place: int | None = None) -> tuple[int, int]:
        """First and last column (exclusive) of a slice: of this rank, or of one at another place."""
        if features < self.size:
            raise ValueError(
                f"{features} columns of features cannot be cut into {self.size} slices: use fewer ranks, or parallel data"
            )
        return column_bounds(features, self.size)[self.place if place is None else place]
