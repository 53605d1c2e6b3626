"""Who does which snapshots of a window, and when, where states are shipped from rank to rank: pure functions.

A rank has a run of each window's snapshots. It takes the state that the rank before it ends with, and gives back that state's
gradient. Pieces of work follow one another, one forward and one backward (1F1B, Narayanan et al., SOSP'19), so that a rank
holds no more pieces at a time than there are ranks from it on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple


class Turn(NamedTuple):
    """What a rank does in a tick: a piece, forward or back."""

    piece: int
    way: Literal["forward", "back"]


def runs(costs: Sequence[float], ranks: int) -> list[range]:
    """Cut a window's snapshots into a run for each rank, the costliest as cheap as can be; ranks beyond the snapshots get none.

    >>> from headrace.snapshots.relay import runs
    >>> runs([1.0, 1.0, 1.0, 3.0], 2)
    [range(0, 3), range(3, 4)]
    """
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, not {ranks}")
    count, used = len(costs), min(ranks, len(costs))
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best: list[list[tuple[float, int]]] = [[(total, 0) for total in sums]]  # by runs and end: costliest, last begin
    for number in range(1, used):
        before, row = best[-1], [(float("inf"), 0)] * number
        for end in range(number, count + 1):
            options = ((max(before[begin][0], sums[end] - sums[begin]), begin) for begin in range(number, end))
            row.append(min(options, default=(float("inf"), 0)))
        best.append(row)
    cut: list[range] = []
    end = count
    for number in reversed(range(used)):
        begin = best[number][end][1] if number else 0
        cut.append(range(begin, end))
        end = begin
    return [*reversed(cut), *[range(count, count)] * (ranks - used)]


def ticks(pieces: int, ranks: int) -> list[list[Turn | None]]:
    """What each rank does in each tick: what it waits for was done in an earlier one. Gradients come before new pieces.

    >>> from headrace.snapshots.relay import ticks
    >>> [[turn and turn.way[0] + str(turn.piece) for turn in tick] for tick in ticks(2, 2)]
    [['f0', None], ['f1', 'f0'], [None, 'b0'], ['b0', 'f1'], [None, 'b1'], ['b1', None]]
    """
    forward, back = [0] * ranks, [0] * ranks  # pieces that each rank has done
    table: list[list[Turn | None]] = []
    while back[0] < pieces:
        done, returned = list(forward), list(back)
        tick: list[Turn | None] = []
        for rank in range(ranks):
            arrived = pieces if rank == 0 else done[rank - 1]
            given = done[rank] if rank == ranks - 1 else returned[rank + 1]
            if back[rank] < given:
                tick.append(Turn(back[rank], "back"))
                back[rank] += 1
            elif forward[rank] < arrived and forward[rank] - back[rank] < ranks - rank:
                tick.append(Turn(forward[rank], "forward"))
                forward[rank] += 1
            else:
                tick.append(None)
        table.append(tick)
    return table
