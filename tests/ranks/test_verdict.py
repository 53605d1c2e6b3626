"""Which rank is to blame, from what was read of the ranks."""

import pytest

from headrace.ranks.beats import Beat
from headrace.ranks.verdict import Seen, verdict


def judge(*changes, store_silence=0.0, store_error="", host=0):
    """The verdict of rank 0 of three, of which the others are changed."""
    ranks = [Seen(f"rank {rank}", Beat(), **(changes[rank - 1] if 0 < rank <= len(changes) else {})) for rank in range(3)]
    return verdict(ranks, me=0, patience=5, store_silence=store_silence, store_error=store_error, host=host)


def said(state, reason=""):
    return Beat(state=state, reason=reason)


def with_beats(*beats, me=0, **changes):
    ranks = [Seen(f"rank {rank}", beat) for rank, beat in enumerate(beats)]
    return verdict(ranks, me=me, patience=5, **({"store_silence": 0.0, "host": 0} | changes))


def test_all_is_well():
    assert judge() is None
    assert judge({"silence": 4.9, "process": "running"}, {"silence": 4.9, "process": "stopped"}, store_silence=4.9) is None


def test_a_rank_that_failed_is_named_with_its_traceback():
    assert with_beats(Beat(), Beat(), said("failed", "OSError: gone")) == "rank 2 failed:\nOSError: gone"
    # and before one that ends for that reason
    assert with_beats(Beat(), said("ending", "because"), said("failed", "OSError")) == "rank 2 failed:\nOSError"


def test_the_reason_of_a_rank_that_ends_is_passed_on():
    assert with_beats(Beat(), said("ending", "rank 2 is stopped"), Beat()) == "rank 2 is stopped"


def test_a_rank_that_left_is_not_missed():
    left = Seen("rank 1", said("left"), silence=100, process="ended", rounds_after_end=9)
    assert verdict([Seen("rank 0", Beat()), left], me=0, patience=5, store_silence=0, host=0) is None


def test_a_rank_that_ended_is_named_once_its_last_words_were_read():
    assert judge({}, {"process": "ended", "rounds_after_end": 1}) is None
    assert judge({}, {"process": "ended", "rounds_after_end": 1, "silence": 9}) is None
    assert "rank 2 has ended without a word" in judge({}, {"process": "ended", "rounds_after_end": 2})
    assert "rank 2 has ended" in judge({}, {"process": "ended"}, store_error="broken pipe")


def test_a_stopped_rank_is_named_after_patience():
    assert judge({"process": "stopped", "silence": 4}) is None
    assert judge({"process": "stopped", "silence": 5.1}) == "rank 1 was stopped (SIGSTOP)"
    assert judge({"process": "stopped"}, store_silence=5.1) == "rank 1 was stopped (SIGSTOP)"


@pytest.mark.parametrize("process", ["running", "unknown"])
def test_a_silent_rank_is_named(process):
    reason = judge({}, {"silence": 5.1, "process": process})
    assert reason.startswith("rank 2 has given no sign of life for 5 s")
    assert ("its process lives" in reason) == (process == "running")


def test_a_store_that_does_not_answer_is_named_with_its_host():
    reason = with_beats(Beat(), Beat(), me=1, store_silence=5.1)
    assert reason.startswith("The job's store, which rank 0 hosts, does not answer (silent for 5 s)")
    assert with_beats(Beat(), Beat(), me=1, store_error="reset", host=None).startswith("The job's store does not answer (reset)")


def test_the_store_of_a_rank_that_left_is_not_missed():
    assert with_beats(said("left"), Beat(), Beat(), me=1, store_error="reset") is None
    assert with_beats(said("left"), Beat(), Beat(), me=1, store_silence=9) is None
