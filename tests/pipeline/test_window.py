"""The window: its rule in numbers, and what follows from it for every order of events."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline import Window


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_an_interval_is_at_most_lead_epochs_ahead(lead):
    window = Window(lead)
    for slowest in range(1, 6):
        allowed = [epoch for epoch in range(12) if window.allows(epoch, slowest)]
        assert allowed == list(range(slowest + lead + 1))


@pytest.mark.parametrize("lead", [0, 1, 2])
@pytest.mark.parametrize("first", [0, 7])
def test_the_first_epoch_is_synchronous(lead, first):
    window = Window(lead, first)
    assert window.allows(first, slowest=first)
    assert not window.allows(first + 1, slowest=first)
    assert window.allows(first + 1 + lead, slowest=first + 1)


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 20), st.integers(0, 20))
def test_what_is_allowed_stays_allowed(lead, first, epoch, slowest):
    window = Window(lead, first)
    if window.allows(epoch, slowest):
        assert window.allows(epoch, slowest + 1)
        assert window.allows(max(epoch - 1, 0), slowest)
        assert Window(lead + 1, first).allows(epoch, slowest)


@settings(max_examples=200)
@given(st.integers(0, 3), st.lists(st.integers(0, 4), max_size=80))
def test_intervals_that_ask_are_never_further_apart(lead, turns):
    """Each turn one of five intervals goes through an epoch, if it may start it."""
    window, epochs = Window(lead), [0] * 5
    for interval in turns:
        if window.allows(epochs[interval], min(epochs)):
            assert epochs[interval] - min(epochs) <= lead
            epochs[interval] += 1
        assert window.allows(min(epochs), min(epochs)), "the slowest never waits"


def test_a_negative_lead_is_refused():
    with pytest.raises(ValueError, match="lead must not be negative, got -1"):
        Window(-1)
