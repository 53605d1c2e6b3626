import signal
import sys
import time

import pytest

from headrace.cli.shown.progress import terminable


class Freed:
    """Gets a signal while it is freed, where nothing can be raised."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_that_falls_into_a_destructor_comes_again(number, capfd):
    with pytest.raises(KeyboardInterrupt), terminable():
        Freed(number)
        time.sleep(10)
    assert capfd.readouterr().err == ""


def test_an_interrupt_after_the_work_was_done_is_forgotten(capfd):
    with terminable():
        Freed(signal.SIGTERM)
    time.sleep(0.05)
    assert capfd.readouterr().err == ""


def test_other_errors_of_destructors_are_shown_as_before(monkeypatch):
    class Bad:
        def __del__(self):
            raise ValueError("not an interrupt")

    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: shown.append(str(unraisable.exc_value)))
    with terminable():
        Bad()
    assert shown == ["not an interrupt"]
