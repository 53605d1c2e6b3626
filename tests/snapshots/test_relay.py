"""Runs of snapshots and the turns of ranks: pure functions, by replay."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.snapshots.relay import runs, ticks


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 4))
def test_runs_cover_a_window_and_none_could_be_cheaper(costs, ranks):
    made = runs(costs, ranks)
    used = min(ranks, len(costs))
    assert [place for run in made for place in run] == list(range(len(costs)))
    assert [bool(run) for run in made] == [True] * used + [False] * (ranks - used)
    cuts = ([0, *cut, len(costs)] for cut in combinations(range(1, len(costs)), used - 1))
    best = min(max(sum(costs[a:b]) for a, b in pairwise(cut)) for cut in cuts)
    assert max(sum(costs[place] for place in run) for run in made) == best


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("pieces", [0, 1, 2, 7])
def test_turns_follow_one_another_and_few_pieces_are_under_way(pieces, ranks):
    when = {}
    for time, tick in enumerate(ticks(pieces, ranks)):
        for rank, turn in enumerate(tick):
            if turn is not None:
                when[rank, turn.way, turn.piece] = time
    assert len(when) == 2 * ranks * pieces
    for (rank, way, piece), time in when.items():
        if way == "forward":
            assert rank == 0 or when[rank - 1, "forward", piece] < time
            open_pieces = sum(when[rank, "forward", p] <= time < when[rank, "back", p] for p in range(pieces))
            assert open_pieces <= ranks - rank
        else:
            assert when[rank, "forward", piece] < time
            assert rank == ranks - 1 or when[rank + 1, "back", piece] < time
        assert piece == 0 or when[rank, way, piece - 1] < time
