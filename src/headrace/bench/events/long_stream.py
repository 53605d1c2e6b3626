"""A generated stream that lies on disk, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.graph import EventStream, generate, open_dataset


@contextmanager
def long_stream(*, events: int, nodes: int, folder: str | None, progress: Callable[[str], None]) -> Iterator[EventStream]:
    """A stream of so many events, mapped from `folder`: from the one that was made there before, if there is one."""
    with TemporaryDirectory() as aside:
        place = Path(folder or aside) / f"events-{events}-{nodes}"
        if not place.exists():
            progress(f"generating {events:,} events of {nodes:,} nodes")
            generate.events(nodes=nodes, events=events).save(place)
        yield EventStream.of(open_dataset(place))
