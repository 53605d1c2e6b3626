"""One thread that works in the order of submission; after a failure it refuses the rest."""

import threading

import pytest
import torch

from headrace.ranks import Turns

CPU = torch.device("cpu")


def test_work_is_done_in_order_on_one_thread():
    turns, seen = Turns(ahead=4, name="a test", device=CPU), []
    pending = [turns.submit(lambda n=n: seen.append((n, threading.current_thread().name)) or n) for n in range(20)]
    assert [p.wait() for p in pending] == list(range(20))
    assert seen == [(n, "a test") for n in range(20)]
    assert all(p.done for p in pending)
    turns.close()
    assert turns.waited > 0
    with pytest.raises(ValueError, match="a test is closed"):
        turns.submit(lambda: None)


def test_submit_waits_while_too_many_are_ahead():
    turns, gate = Turns(ahead=1, name="a test", device=CPU), threading.Event()
    for _ in range(2):  # one is at work, one waits
        turns.submit(lambda: gate.wait(10))
    third = threading.Thread(target=lambda: turns.submit(lambda: None))
    third.start()
    third.join(0.2)
    assert third.is_alive()
    gate.set()
    third.join(10)
    turns.close()
    assert not third.is_alive()
    assert turns.peak <= 3


def test_after_a_failure_the_rest_is_refused():
    turns, gate = Turns(ahead=4, name="a test", device=CPU), threading.Event()

    def fail():
        gate.wait(10)
        raise OSError("gone")

    first, second = turns.submit(fail), turns.submit(lambda: 1)
    gate.set()
    with pytest.raises(OSError, match="gone"):
        first.wait()
    with pytest.raises(RuntimeError, match="a test failed earlier and cannot go on: gone"):
        second.wait()
    with pytest.raises(RuntimeError, match="failed earlier"):
        turns.submit(lambda: 1)
    turns.close()


def test_a_wrong_length_is_named():
    with pytest.raises(ValueError, match="ahead must be at least 1, not 0"):
        Turns(ahead=0, name="a test", device=CPU)
