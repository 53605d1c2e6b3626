"""Real event streams: what they hold, what batches lose of them, and what needs no learning."""

import pytest
import torch

import headrace as hr
from headrace.temporal import cut_events
from headrace.temporal.heuristics import Recency, information_kept
from headrace.temporal.statistics import batch_loss

EVENTS = {"jodie_wikipedia": (157_474, 9_227), "enron": (125_235, 184), "bitcoin_otc": (35_592, 5_881)}
KEPT = {"jodie_wikipedia": (0.363, 0.270, 0.184), "enron": (0.089, 0.051, 0.020), "bitcoin_otc": (0.340, 0.244, 0.159)}


@pytest.fixture
def loaded(data_root, monkeypatch):
    monkeypatch.setenv("HEADRACE_DATA", str(data_root))
    return hr.load


@pytest.mark.parametrize("name", EVENTS)
def test_streams_load_with_their_times_and_lose_what_is_known_of_batches(loaded, name):
    data = loaded(name)
    assert (len(hr.EventStream.of(data)), data.num_nodes) == EVENTS[name]
    assert data.graph.time is not None
    assert len(data.graph.time) == EVENTS[name][0]
    stream = hr.EventStream.of(data)
    assert torch.equal(stream.time.sort().values, data.graph.time.sort().values)
    train = stream.splits().train if name != "bitcoin_otc" else int(0.7 * len(stream))
    for size, share in zip((200, 600, 2400), KEPT[name], strict=True):
        cuts = cut_events(stream, 0, train, size)
        assert information_kept(stream, cuts) == pytest.approx(share, abs=0.0006)
        assert batch_loss(stream, cuts).kept == information_kept(stream, cuts)


def test_enron_has_self_loops_and_twins(loaded):
    stream = hr.EventStream.of(loaded("enron"))
    assert int((stream.src == stream.dst).sum()) == 16_410
    begin = stream.splits().val
    seen, earlier = set(), []
    for event in zip(stream.src.tolist(), stream.dst.tolist(), stream.time.tolist(), strict=True):
        earlier.append(event in seen)
        seen.add(event)
    assert sum(earlier[begin:]) / len(earlier[begin:]) == pytest.approx(0.62, abs=0.005)


@pytest.mark.slow
def test_a_heuristic_loses_with_the_age_of_what_it_knows(loaded):
    stream = hr.EventStream.of(loaded("jodie_wikipedia"))
    splits, recency = stream.splits(), Recency(stream)
    for lag, mrr in ((1, 0.82), (200, 0.73), (600, 0.70)):
        ranks = recency.ranks(stream, splits.val, splits.test, lag)
        assert float((1 / ranks).mean()) == pytest.approx(mrr, abs=0.005)
