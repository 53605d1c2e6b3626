"""A process is known by more than its number, and only a stopped one is killed."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.ranks.process import Process, _stat

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def described(child):
    return replace(Process.current(), pid=child.pid, started=_stat(child.pid)[1])


def becomes(process, state):
    deadline = time.monotonic() + 5
    while process.state() != state and time.monotonic() < deadline:
        time.sleep(0.01)
    return process.state() == state


def test_states_of_a_process(child):
    process = described(child)
    assert Process.current().state() == process.state() == "running"
    assert str(process) == f"process {child.pid} on {process.host}"
    child.send_signal(signal.SIGSTOP)
    assert becomes(process, "stopped")
    child.kill()
    assert becomes(process, "ended")  # not yet waited for
    child.wait()
    assert process.state() == "ended"


def test_another_process_of_the_same_number_is_not_meant(child):
    process = described(child)
    child.send_signal(signal.SIGSTOP)
    assert becomes(process, "stopped")
    earlier = replace(process, started=process.started - 1)
    assert earlier.state() == "ended"
    elsewhere = replace(process, machine="another")
    assert elsewhere.state() == replace(process, namespace="pid:[1]").state() == "unknown"
    for other in (earlier, elsewhere):
        assert not other.kill_if_stopped()
    assert child.poll() is None


def test_only_a_stopped_process_is_killed(child):
    process = described(child)
    assert not process.kill_if_stopped()
    assert not Process.current().kill_if_stopped()
    child.send_signal(signal.SIGSTOP)
    assert becomes(process, "stopped")
    assert process.kill_if_stopped()
    assert child.wait(5) == -signal.SIGKILL
    assert not process.kill_if_stopped()


def test_a_name_with_spaces_and_brackets_is_no_field(tmp_path):
    script = tmp_path / "a) R (b"
    script.write_text("#!/bin/sh\nread line\n")
    script.chmod(0o700)
    process = subprocess.Popen([script], stdin=subprocess.PIPE)
    try:
        assert _stat(process.pid)[1] >= _stat(os.getpid())[1]
    finally:
        process.communicate()
