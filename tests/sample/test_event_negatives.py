"""Historical negatives: whom a source met before the batch, and nobody whom it met later."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.sample.negatives.events import _events_before


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(0, 30), max_size=9), min_size=1, max_size=6), st.integers(-1, 31))
def test_rows_are_bisected_as_one_by_one(rows, before):
    rows = [torch.tensor(sorted(row), dtype=torch.int64) for row in rows]
    ends = torch.tensor([len(row) for row in rows]).cumsum(0)
    starts = ends - torch.tensor([len(row) for row in rows])
    found = _events_before(torch.cat([*rows, torch.tensor([99])]), starts, ends, before)
    assert found.tolist() == [int((row < before).sum()) for row in rows]


def test_historical_negatives_were_met_before_the_batch():
    stream = hr.EventStream.of(hr.generate.events(nodes=80, events=2000, seed=3))
    negatives = hr.sample.EventNegatives(stream, amount=5, kind="historical", seed=1)
    begin, end = 1200, 1300
    drawn = negatives.sample(begin, end, batch=12)
    for row, source in zip(drawn.tolist(), stream.src[begin:end].tolist(), strict=True):
        met = set(stream.dst[:begin][stream.src[:begin] == source].tolist()) | set(
            stream.src[:begin][stream.dst[:begin] == source].tolist()
        )
        assert not met or set(row) <= met
    assert negatives.destinations.tolist() == sorted(set(stream.dst.tolist()))
