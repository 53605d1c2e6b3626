"""`Costs`: what a group takes, from its sizes; first by a count of operations, then fitted to measured seconds, per rank.

A group's seconds are a E + b N + c over its snapshots' edges, nodes and number. The three follow from measured groups by least
squares in which older ones count less. Costs decide who does what, never what comes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FADE = 0.9  # what a measurement counts for after another one
_FADE_OF_RANK = 0.7  # the same for the speed of a rank, which may change
_PRIOR = 0.05  # of the mean rank's measured seconds: for how much it counts that ranks are alike


class Costs:
    """The costs of groups on `ranks` ranks. `sizes` of a group are (edges, nodes, snapshots).

    first: weights of a size before anything was measured, such as multiply-adds of a sum over an edge and of a map of a node.

    >>> from headrace.snapshots.costs import Costs
    >>> costs = Costs(1, first=(1.0, 10.0, 0.0))
    >>> costs.of([(100, 5, 1)]), costs.speeds
    ([150.0], [1.0])
    """

    def __init__(self, ranks: int, *, first: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> None:
        self.ranks, self.first = ranks, np.array(first)
        self._products = np.zeros((3, 3))  # of sizes with sizes, all ranks at the pace of the mean
        self._seconds = np.zeros(3)  # of sizes with seconds
        self._done = np.zeros((ranks, 3))  # sizes that each rank has done, faded
        self._took = np.zeros(ranks)  # seconds that it took for them
        self.measured = 0

    @property
    def weights(self) -> NDArray[np.float64]:
        """a, b and c."""
        if self.measured < 3:
            return self.first
        ridge = 1e-6 * np.trace(self._products) * np.eye(3) / 3
        fitted = np.linalg.solve(self._products + ridge, self._seconds)
        if (fitted >= 0).all() and fitted.sum() > 0:
            return fitted
        scale = float(self.first @ self._seconds) / max(float(self.first @ self._products @ self.first), 1e-300)
        return self.first * max(scale, 1e-300)

    @property
    def speeds(self) -> list[float]:
        """Of each rank, beside the mean of all; alike before anything was measured.

        A rank that has had nothing to do for some steps is taken for one like the others again.
        """
        done, took = self._done @ self.weights, self._took
        if not done.sum() > 0 or not took.sum() > 0:
            return [1.0] * self.ranks
        mean = done.sum() / took.sum()
        prior = _PRIOR * took.sum() / self.ranks
        return [float(speed) for speed in (done / mean + prior) / (took + prior)]

    def of(self, sizes: Sequence[tuple[float, float, float]]) -> list[float]:
        """The cost of each group."""
        return [float(cost) for cost in np.maximum(np.asarray(sizes, np.float64).reshape(-1, 3) @ self.weights, 0.0)]

    def measure(self, rank: int, sizes: Sequence[tuple[float, float, float]], seconds: Sequence[float]) -> None:
        """Take the seconds of groups that a rank has done in a step; none, if it had none."""
        rows = np.asarray(sizes, np.float64).reshape(-1, 3)
        values = np.asarray(seconds, np.float64)
        if len(values):
            pace = self.speeds[rank]
            self._products = _FADE * self._products + rows.T @ rows
            self._seconds = _FADE * self._seconds + rows.T @ (values * pace)
            self.measured += len(values)
        self._done[rank] = _FADE_OF_RANK * self._done[rank] + rows.sum(0)
        self._took[rank] = _FADE_OF_RANK * self._took[rank] + values.sum()

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "products": self._products.tolist(),
            "seconds": self._seconds.tolist(),
            "done": self._done.tolist(),
            "took": self._took.tolist(),
            "measured": self.measured,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned; with another number of ranks their paces begin anew."""
        self._products, self._seconds = np.array(state["products"]), np.array(state["seconds"])
        self.measured = state["measured"]
        if len(state.get("took", ())) == self.ranks:
            self._done, self._took = np.array(state["done"]), np.array(state["took"])
