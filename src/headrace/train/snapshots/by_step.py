"""`BySteps`: how well each step of an epoch was balanced, as the log and the report have it."""

from __future__ import annotations

from headrace.snapshots import Balance

_MOST = 64  # of an epoch: where it has more steps, means of as many in turn


class BySteps:
    """Makespan over bound, and the idle share, of the steps of an epoch.

    >>> from headrace.snapshots import balance
    >>> steps = BySteps()
    >>> steps.add(balance([3.0, 1.0, 1.0], ranks=2))
    >>> steps.taken()
    {'over_bound': [1.0], 'idle': [0.1667]}
    """

    def __init__(self) -> None:
        self._steps: list[tuple[float, float, float]] = []

    def add(self, came: Balance) -> None:
        """A step, as it was measured."""
        self._steps.append((came.makespan, came.bound, sum(came.loads) / len(came.loads)))

    def taken(self) -> dict[str, list[float]]:
        """Of the steps so far, which are forgotten."""
        steps, self._steps = self._steps, []
        size = -(-len(steps) // _MOST) or 1
        sums = [[sum(part) for part in zip(*steps[at : at + size], strict=True)] for at in range(0, len(steps), size)]
        return {
            "over_bound": [round(span / bound, 4) if bound else 1.0 for span, bound, _ in sums],
            "idle": [round(1 - busy / span, 4) if span else 0.0 for span, _, busy in sums],
        }
