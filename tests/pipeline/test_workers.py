"""Threads end before the interpreter does."""

import gc
import json
import signal
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch

from child import run_python
from headrace.pipeline import Pipeline, Stage, workers
from headrace.ranks import Turns

ENDS = {"plainly": 0, "by_exit": 3, "by_exception": 1, "by_interrupt": -signal.SIGINT}  # as Python ends without any thread


def exit_codes(repeats, folder, *more):
    child = Path(__file__).parent.parent / "ending_child.py"
    done = run_python(str(child), str(repeats), str(folder), *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_interpreter_that_ends_while_threads_work_ends_as_without_them(tmp_path):
    assert exit_codes(1, tmp_path, "together") == {f"everything {way}": [code] for way, code in ENDS.items()}


@pytest.mark.slow
def test_every_kind_of_thread_ends_before_the_interpreter(tmp_path):
    for name, codes in exit_codes(2, tmp_path).items():
        assert set(codes) == {ENDS[name.partition(" ")[2]]}, (name, codes)


def test_the_end_stops_what_is_alive_and_waits_for_it():
    ended = threading.Event()

    def work(n):
        time.sleep(0.05)
        ended.set()
        return n

    iterator = iter(Pipeline(range(100), [Stage("work", work)], staleness=2))
    next(iterator)
    ended.clear()
    workers._end_all()
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace work 0"]
    assert ended.is_set()
    iterator.close()


def test_the_end_does_not_wait_for_what_has_not_begun():
    turns, gate = Turns(ahead=2, name="a test of the end", device=torch.device("cpu")), threading.Event()
    pending = [turns.submit(lambda: gate.wait(0.2)) for _ in range(3)]
    workers._end_all()
    assert not [thread for thread in threading.enumerate() if thread.name == "a test of the end"]
    for waiting in pending[1:]:
        with pytest.raises(RuntimeError, match="the interpreter ends"):
            waiting.wait()
    turns.close()


def test_the_registry_keeps_nothing_alive():
    iterator = iter(Pipeline(range(3), [Stage("kept alive", lambda n: n)], staleness=2))
    next(iterator)
    each = weakref.ref(next(w for w in workers._all if w.threads[0].name == "headrace kept alive 0"))
    iterator.close()
    del iterator
    gc.collect()
    assert each() is None
