"""Random event streams: pairs that come back, and nodes that arrive while the stream goes on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace import _native
from headrace._arrays import thread_count
from headrace._memory import require_memory
from headrace.graph.dataset import Dataset
from headrace.graph.stream import EventStream

_KIND, _LAG, _SOURCE, _TARGET, _GAP = range(5)  # what the random words of an event are for
_CHUNK = 1 << 20  # events made at a time; part of what a seed means
_STREAMS = 8  # of words per chunk


def events(
    nodes: int,
    events: int,
    *,
    repeat: float = 0.8,
    new: float = 0.02,
    gap: float = 10.0,
    seed: int = 0,
    threads: int | None = None,
) -> Dataset:
    """A stream of `events` events between users (the first nine tenths of the nodes) and items, in order of time.

    A share `repeat` of them are between a pair that met before: that of an earlier event, recent ones more often (the lag's
    logarithm is uniform). A share `new` brings a user that was not there before, until all are; the others are between users that
    are there and items by a power law. Times are whole numbers, about `gap` apart, so that some are equal.

    The dataset's graph has every event in both directions, as sampling reads it, and `extra` the list: both are mapped when a
    saved dataset is opened. The result is a function of the arguments, not of `threads`.

    >>> import headrace as hr
    >>> data = hr.generate.events(nodes=100, events=2000, seed=1)
    >>> hr.EventStream.of(data)
    EventStream(num_events=2000, num_nodes=100, time=0..19817)
    """
    if nodes < 2 or events < 1:
        raise ValueError(f"nodes must be at least 2 and events at least 1, not {nodes} and {events}")
    if min(repeat, new) < 0 or repeat + new > 1:
        raise ValueError(f"repeat and new are shares, each at least 0 and together at most 1, not {repeat} and {new}")
    if not gap > 0 or not 0 <= seed < 2**64:
        raise ValueError(f"gap must be above 0 and seed from 0 to 2**64 - 1, not {gap} and {seed}")
    require_memory(80 * events + 16 * nodes, f"a stream of {events} events", "generate a shorter one")
    users = min(max(nodes * 9 // 10, 1), nodes - 1)
    src, dst, time = np.empty(events, np.int32), np.empty(events, np.int32), np.empty(events, np.int64)
    origin = np.empty(events, np.int64)  # the event whose pair each one has
    known_users, now = 0, 0.0
    for begin in range(0, events, _CHUNK):
        size = min(_CHUNK, events - begin)
        kind, lag, source, target, wait = (_uniform(seed, begin // _CHUNK * _STREAMS + what, size, threads) for what in range(5))
        place = np.arange(begin, begin + size)
        arrives = (kind >= repeat) & (kind < repeat + new) | (place == 0)
        arrived = np.minimum(known_users + np.cumsum(arrives), users)
        fresh = arrives & (known_users + np.cumsum(arrives) <= users)
        known_users = int(arrived[-1])
        src[begin : begin + size] = np.where(fresh, arrived - 1, (arrived * source).astype(np.int64))
        dst[begin : begin + size] = users + ((nodes - users) * target**3).astype(np.int64)
        back = np.floor(np.exp(lag * np.log(np.maximum(place, 1)))).astype(np.int64)
        origin[begin : begin + size] = np.where((kind < repeat) & (place > 0), np.maximum(place - np.maximum(back, 1), 0), place)
        moments = now + np.cumsum(-np.log1p(-wait) * gap)
        now = float(moments[-1])
        time[begin : begin + size] = moments.astype(np.int64)
    while True:  # each event takes the pair of its origin's origin: halves the way to the first of its pair
        further = origin[origin]
        if np.array_equal(further, origin):
            break
        origin = further
    stream = EventStream(src[origin], dst[origin], time, num_nodes=nodes)
    extra = {"src": stream.src, "dst": stream.dst, "time": stream.time}
    info = {"name": "events", "repeat": repeat, "new": new, "num_src_nodes": users, "seed": seed}
    return Dataset(stream.graph(), extra=extra, info=info)


def _uniform(seed: int, stream: int, count: int, threads: int | None) -> NDArray[np.float64]:
    words = _native.random_words(seed, stream, _native.Purpose.events, count, thread_count(threads))
    uniform: NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform
