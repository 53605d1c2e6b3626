"""`on_first`: rank 0 works, and the others wait as long as it takes."""

import time

import pytest

from headrace.ranks import Alone, on_first
from rank_threads import on_every_rank


def test_all_ranks_have_the_result_of_rank_0():
    def work(ranks):
        calls = []
        ranks.all_gather = counted(ranks.all_gather, calls)

        def first(alive):
            for _ in range(20):
                time.sleep(0.005)
                alive()
            return f"by {ranks.rank}"

        return on_first(ranks, first, seconds=0.02), len(calls)

    results = on_every_rank(3, work)
    assert [value for value, _ in results] == ["by 0"] * 3
    assert len({calls for _, calls in results}) == 1
    assert 3 <= results[0][1] <= 8  # it told the others now and then, not with every call


def counted(work, calls):
    def done(value):
        calls.append(value)
        return work(value)

    return done


def test_one_process_works_itself():
    assert on_first(Alone(), lambda alive: alive() or "alone") == "alone"


def test_an_error_of_rank_0_is_its_own():
    with pytest.raises(ZeroDivisionError):
        on_first(Alone(), lambda alive: 1 // 0)
