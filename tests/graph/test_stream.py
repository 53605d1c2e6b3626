"""Event streams: what they hold, where they are parted, and what they refuse."""

import re

import pytest
import torch

import headrace as hr
from headrace.graph.stream import check_times


def stream(**more):
    return hr.EventStream([0, 1, 0, 2, 0], [3, 3, 4, 2, 3], [10, 20, 20, 30, 40], **more)


def test_the_graph_has_events_in_both_directions_in_order_of_time():
    graph = stream().graph()
    assert graph.is_sorted_by_time()
    assert graph.neighbors(3).tolist() == [0, 1, 0]
    assert graph.neighbors(0).tolist() == [3, 4, 3]
    assert graph.neighbors(2).tolist() == [2]  # a self loop stands once
    assert graph.edge_id[graph.indptr[0] : graph.indptr[1]].tolist() == [0, 2, 4]
    assert stream().graph() is not stream().graph()


def test_rows_have_two_dimensions_and_parts_share_memory():
    events = stream(edge_x=[1.0, 2.0, 3.0, 4.0, 5.0])
    part = events.part(1, 4)
    assert events.edge_width == 1
    assert part.edge_x.tolist() == [[2.0], [3.0], [4.0]]
    assert part.src.data_ptr() == events.src[1:].data_ptr()
    assert part.num_nodes == 5


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_splits_keep_equal_times_together(dtype):
    time = torch.tensor([1, 2, 3, 3, 3, 3, 4, 5, 6, 7], dtype=dtype)
    events = hr.EventStream(torch.zeros(10, dtype=torch.int64), torch.ones(10, dtype=torch.int64), time)
    assert events.splits(val=0.3, test=0.3) == (6, 7, 10)
    events.val_time, events.test_time = 2.5, 5.0
    assert events.splits() == (2, 8, 10)


def test_a_dataset_gives_its_list_or_the_edges_of_its_graph():
    events = stream()
    listed = hr.Dataset(events.graph(), extra={"src": events.src, "dst": events.dst, "ts": events.time})
    assert hr.EventStream.of(listed).graph() is listed.graph
    rows = torch.arange(5.0)
    shuffled = torch.tensor([3, 0, 4, 2, 1])
    graph = hr.Graph.from_edges(events.src[shuffled], events.dst[shuffled], 5, time=events.time[shuffled], edge_id=True)
    again = hr.EventStream.of(hr.Dataset(graph, extra={"edge_features": rows[shuffled]}))
    by_time = shuffled.sort().values
    assert again.time.tolist() == events.time[by_time].tolist()
    assert sorted(zip(again.src.tolist(), again.dst.tolist(), again.edge_x.flatten().tolist(), strict=True)) == sorted(
        zip(events.src.tolist(), events.dst.tolist(), rows.tolist(), strict=True)
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([0, 1], [1, 0], [2, 1]), "time[1] is 1, before time[0] = 2: events must be in order of time; sort them"),
        (([0, 1], [1, 0], [1.0, float("nan")]), "time[1] is nan: every event needs a finite time"),
        (([0, 1], [1], [1, 2]), "dst has 1 entries and src has 2: an event has one of each"),
        (([0, 1], [1, 0], [1, 2], [[1.0]]), "edge_x has 1 entries and src has 2"),
        (([0, -1], [1, 0], [1, 2]), "src[1] is -1: node ids begin at 0"),
    ],
)
def test_bad_lists_are_refused_by_name_and_place(arguments, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        hr.EventStream(*arguments)


def test_bad_nodes_and_splits_are_refused():
    with pytest.raises(ValueError, match=re.escape("dst[2] is 4, but num_nodes is 4: ids go from 0 to 3")):
        stream(num_nodes=4)
    with pytest.raises(ValueError, match="the val split has no events: all events have one time"):
        hr.EventStream([0, 1], [1, 0], [5, 5]).splits()
    with pytest.raises(ValueError, match="the stream has no events"):
        hr.EventStream([], [], []).splits()
    with pytest.raises(ValueError, match="val_time is 3 and test_time 2"):
        stream(val_time=3, test_time=2)
    with pytest.raises(ValueError, match="no times of events: import it with --time-column"):
        hr.EventStream.of(hr.Dataset(hr.Graph.from_edges([0], [1])))
    both = hr.Graph.from_edges([0, 1], [1, 2], time=[1, 2], edge_id=True, undirected=True)
    with pytest.raises(ValueError, match="every event in both directions: import it without --undirected"):
        hr.EventStream.of(hr.Dataset(both))


def test_order_is_checked_across_blocks(monkeypatch):
    monkeypatch.setattr("headrace.graph.stream._BLOCK", 3)
    check_times(torch.tensor([1, 2, 3, 3, 4, 5, 6]))
    with pytest.raises(ValueError, match=re.escape("time[3] is 2, before time[2] = 3")):
        check_times(torch.tensor([1, 2, 3, 2, 4]))
    with pytest.raises(ValueError, match=re.escape("time[5] is 3, before time[4] = 4")):
        check_times(torch.tensor([1, 2, 3, 3, 4, 3]))


def test_generated_events_repeat_arrive_and_are_the_same_for_any_threads():
    data = hr.generate.events(nodes=400, events=20_000, repeat=0.7, new=0.01, seed=3, threads=1)
    again = hr.generate.events(nodes=400, events=20_000, repeat=0.7, new=0.01, seed=3, threads=2)
    events = hr.EventStream.of(data)
    assert torch.equal(events.src, again.extra["src"])
    assert torch.equal(events.time, again.extra["time"])
    assert events.graph() is data.graph
    pairs = list(zip(events.src.tolist(), events.dst.tolist(), strict=True))
    seen, repeated, new = set(), 0, 0
    for pair in pairs:
        repeated += pair in seen
        new += pair[0] not in {source for source, _ in seen} if len(seen) < 200 else False
        seen.add(pair)
    assert 0.7 < repeated / len(pairs) < 0.95
    assert new > 0
    assert (events.src < 360).all()
    assert (events.dst >= 360).all()
    assert (events.time.diff() == 0).any()
    with pytest.raises(ValueError, match="together at most 1"):
        hr.generate.events(10, 10, repeat=0.9, new=0.2)
