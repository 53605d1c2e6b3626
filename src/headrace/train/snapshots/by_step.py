"""`BySteps`: how well each step of an epoch was balanced, as the log and the report have it."""

from __future__ import annotations

from headrace.snapshots import Balance

_MOST = 64  # of an epoch: where it has more steps, means of as many in turn


class BySteps:
    """Makespan over bound, the idle share, and the bytes that a rank sent, of the steps of an epoch.

    >>> from headrace.snapshots import balance
    >>> steps = BySteps()
    >>> steps.add(balance([3.0, 1.0, 1.0], ranks=2), sent=400)
    >>> steps.taken()
    {'over_bound': [1.0], 'idle': [0.1667], 'bytes': [400.0]}
    """

    def __init__(self) -> None:
        self._steps: list[tuple[float, float, float, int]] = []

    def add(self, came: Balance, sent: int) -> None:
        """A step, as it was measured."""
        self._steps.append((came.makespan, came.bound, sum(came.loads) / len(came.loads), sent))

    def taken(self) -> dict[str, list[float]]:
        """Of the steps so far, which are forgotten."""
        steps, self._steps = self._steps, []
        size = -(-len(steps) // _MOST) or 1
        parts = [steps[at : at + size] for at in range(0, len(steps), size)]
        sums = [[sum(column) for column in zip(*part, strict=True)] for part in parts]
        return {
            "over_bound": [round(span / bound, 4) if bound else 1.0 for span, bound, _, _ in sums],
            "idle": [round(1 - busy / span, 4) if span else 0.0 for span, _, busy, _ in sums],
            "bytes": [round(sent / len(part), 1) for part, (*_, sent) in zip(parts, sums, strict=True)],
        }
