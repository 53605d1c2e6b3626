import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline import Pipeline, Stage, Trace


def headrace_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("headrace")]


@given(
    items=st.integers(0, 40),
    staleness=st.integers(0, 7),
    threads=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None)
def test_items_come_out_in_order_and_no_more_than_staleness_are_under_way(items, staleness, threads, seed):
    lock = threading.Lock()
    drawn = delivered = most = 0

    def source():
        nonlocal drawn, most
        for i in range(items):
            with lock:
                drawn += 1
                most = max(most, drawn - delivered)
            yield i

    def work(i):
        time.sleep(((i * 7919 + seed) % 5) * 1e-4)
        return i

    pipeline = Pipeline(source(), [Stage(f"s{n}", work, k) for n, k in enumerate(threads)], staleness=staleness)
    got = []
    for item in pipeline:
        with lock:
            delivered += 1
        got.append(item)
    assert got == list(range(items))
    # An item that is being handed over counts as delivered here a moment later than in the pipeline.
    assert most <= max(staleness, 1) + 1
    assert pipeline.peak <= staleness
    assert not headrace_threads()


def test_every_stage_starts_items_in_order():
    started = []
    stages = [
        Stage("shuffle time", lambda i: (time.sleep((5 - i % 5) * 1e-3), i)[1], threads=4),
        Stage("record", lambda i: (started.append(i), i)[1], threads=1),
    ]
    assert list(Pipeline(range(30), stages, staleness=6)) == list(range(30))
    assert started == list(range(30))


def test_zero_staleness_runs_in_the_consumers_thread_when_asked():
    seen = []
    pipeline = Pipeline(range(3), [Stage("work", lambda i: seen.append((i, threading.get_ident())) or i)], staleness=0)
    iterator = iter(pipeline)
    assert seen == []
    assert next(iterator) == 0
    assert seen == [(0, threading.get_ident())]
    assert pipeline.peak == 0


def test_stages_overlap():
    slow = Stage("slow", lambda i: (time.sleep(0.02), i)[1], threads=4)
    begin = time.perf_counter()
    assert list(Pipeline(range(16), [slow], staleness=4)) == list(range(16))
    assert time.perf_counter() - begin < 16 * 0.02 * 0.7


@pytest.mark.parametrize("staleness", [0, 1, 4])
@pytest.mark.parametrize("where", ["source", "first", "second"])
def test_an_error_reaches_the_consumer_at_its_turn_with_its_traceback(staleness, where):
    def raise_at(i, place):
        if place == where and i == 5:
            raise LookupError(f"bad item in {place}")
        return i

    source = (raise_at(i, "source") for i in range(10))
    stages = [Stage(name, lambda i, name=name: raise_at(i, name), threads=2) for name in ("first", "second")]
    got = []
    with pytest.raises(LookupError, match=f"bad item in {where}") as caught:
        for item in Pipeline(source, stages, staleness=staleness):
            got.append(item)
    assert got == [0, 1, 2, 3, 4]
    assert "raise_at" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert not headrace_threads()


def test_an_error_names_its_stage():
    if sys.version_info < (3, 11):
        pytest.skip("notes on exceptions need Python 3.11")
    with pytest.raises(ZeroDivisionError) as caught:
        list(Pipeline([1, 0], [Stage("divide", lambda i: 1 // i)], staleness=2))
    assert any("'divide', item 1" in note for note in caught.value.__notes__)


def test_leaving_the_loop_early_leaves_no_thread_and_frees_what_was_under_way():
    alive = []

    class Big:
        def __init__(self):
            alive.append(1)

        def __del__(self):
            alive.pop()

    for _ in Pipeline(range(100), [Stage("make", lambda _: Big(), threads=3)], staleness=5):
        break
    assert not headrace_threads()
    del _
    gc.collect()
    assert alive == []


def test_a_consumer_that_raises_leaves_no_thread():
    with pytest.raises(KeyError):
        for _ in Pipeline(range(100), [Stage("work", lambda i: i, threads=3)], staleness=5):
            raise KeyError
    assert not headrace_threads()


def test_an_abandoned_iterator_stops_its_threads():
    iterator = iter(Pipeline(range(100), [Stage("work", lambda i: i)], staleness=3))
    next(iterator)
    assert headrace_threads()
    del iterator
    gc.collect()
    assert not headrace_threads()


def test_it_can_be_iterated_again_and_times_add_up():
    pipeline = Pipeline(range(5), [Stage("work", lambda i: (time.sleep(1e-3), i)[1], threads=2)], staleness=2)
    assert list(pipeline) == list(pipeline) == list(range(5))
    work, consumer = pipeline.times
    assert (work.name, work.threads, work.items) == ("work", 2, 10)
    assert work.busy >= 10 * 1e-3
    assert consumer.items == 10


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_consumer_is_busy_with_what_it_was_handed(staleness):
    pipeline = Pipeline(range(3), [Stage("work", lambda i: i)], staleness=staleness)
    for _ in pipeline:
        time.sleep(0.01)
    assert pipeline.times[-1].busy >= 0.03 > pipeline.times[-1].starved


def test_a_slow_consumer_holds_the_first_stage_and_a_slow_stage_starves_the_consumer():
    held = Pipeline(range(6), [Stage("quick", lambda i: i)], staleness=2)
    for _ in held:
        time.sleep(0.01)
    assert held.times[0].held > held.times[0].busy
    starved = Pipeline(range(6), [Stage("slow", lambda i: (time.sleep(0.01), i)[1])], staleness=2)
    list(starved)
    assert starved.times[-1].starved > 0.04


def test_the_trace_opens_in_a_viewer(tmp_path):
    trace = Trace()
    list(Pipeline(range(4), [Stage("a", lambda i: i, 2), Stage("b", lambda i: i)], staleness=3, trace=trace))
    trace.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert sorted((e["name"], e["args"]["item"]) for e in spans) == [(n, i) for n in "ab" for i in range(4)]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in spans)
    assert {e["tid"] for e in spans} <= {e["tid"] for e in events if e["ph"] == "M"}


def test_a_stage_has_one_row_of_the_trace_however_often_it_starts(tmp_path):
    trace = Trace()
    pipeline = Pipeline(range(4), [Stage(name, lambda i: i) for name in "abc"], staleness=3, trace=trace)
    for _ in range(5):
        list(pipeline)
    trace.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    assert len(names) == 3
    assert all(names[e["tid"]] == f"headrace {e['name']} 0" for e in spans)


def test_a_trace_keeps_only_its_latest_spans():
    trace = Trace(capacity=3)
    list(Pipeline(range(10), [Stage("a", lambda i: i)], staleness=2, trace=trace))
    assert len(trace.spans) == 3


def test_ctrl_c_ends_the_process_with_no_thread_left_behind():
    program = """
import threading, time
from headrace.pipeline import Pipeline, Stage
try:
    for i in Pipeline(range(10**9), [Stage("work", lambda i: (time.sleep(0.01), i)[1], threads=3)], staleness=4):
        if i == 3: print("running", flush=True)
except KeyboardInterrupt:
    print("interrupted", threading.active_count(), flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert out == "interrupted 1\n"
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stages": [], "staleness": 1}, "at least one stage"),
        ({"stages": [Stage("a", str)], "staleness": -1}, "staleness must be 0"),
        ({"stages": [Stage("a", str, threads=-1)], "staleness": 1}, "'a' needs at least 1 thread"),
    ],
)
def test_bad_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Pipeline([], **arguments)


def test_stages_without_threads_run_ahead_in_the_consumers_thread():
    done, given, threads = [], [], set()

    def work(name):
        def run(n):
            done.append((name, n))
            threads.add(threading.get_ident())
            return n

        return run

    pipeline = Pipeline(range(6), [Stage("start", work("start"), threads=0), Stage("rows", work("rows"), threads=0)], staleness=3)
    for item in pipeline:
        given.append(item)
        assert ("rows", min(item + 1, 5)) in done  # the next one is through all stages
        assert ("start", min(item + 2, 5)) in done  # the one after has been started
        assert ("start", item + 3) not in done
        assert ("rows", item + 2) not in done
    assert given == list(range(6))
    assert threads == {threading.get_ident()}
    assert pipeline.peak == 3
    assert [t.items for t in pipeline.times] == [6, 6, 6]


@pytest.mark.parametrize("staleness", [1, 2, 5])
def test_a_failure_of_launched_work_waits_for_its_items_turn(staleness):
    def fail_at_three(n):
        if n == 3:
            raise KeyError(n)
        return n

    given = []
    with pytest.raises(KeyError, match="3"):
        for item in Pipeline(range(9), [Stage("launch", fail_at_three, threads=0)], staleness=staleness):
            given.append(item)
    assert given == [0, 1, 2]

    def source():
        yield 0
        raise RuntimeError("no more")

    given = []
    with pytest.raises(RuntimeError, match="no more"):
        for item in Pipeline(source(), [Stage("launch", fail_at_three, threads=0)], staleness=staleness):
            given.append(item)
    assert given == [0]


def test_stages_with_and_without_threads_do_not_mix():
    with pytest.raises(ValueError, match="needs at least 1 thread"):
        Pipeline([1], [Stage("a", abs, threads=0), Stage("b", abs)])
