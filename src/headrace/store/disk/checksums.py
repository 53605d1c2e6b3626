"""Checksums of a partition, taken while its bytes move between a file and memory."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from headrace import _native
from headrace.store.disk.files import Layout, Sums


class PartitionChecksum:
    """Two checksums of a partition whose bytes pass from front to back: of its rows, and of its states.

    Rows have one of their own because a scan reads them alone.

    ahead: a thread takes them while the next bytes move; those that have passed must stay as they are until `sums`. Use it in a
    `with` block.
    """

    def __init__(self, layout: Layout, *, ahead: bool = False) -> None:
        self._split, self._at = layout.state_offset, 0
        self._rows, self._states = _native.Checksum(), _native.Checksum()
        self._thread = ThreadPoolExecutor(1, "headrace-checksum") if ahead else None
        self._last: Future[None] | None = None

    def update(self, data: memoryview) -> None:
        """Take the next bytes."""
        if self._thread is None:
            self._take(data)
        else:
            self._last = self._thread.submit(self._take, data)

    def sums(self) -> Sums:
        if self._last is not None:
            self._last.result()
        return self._rows.digest(), self._states.digest()

    def _take(self, data: memoryview) -> None:
        rows = min(max(self._split - self._at, 0), len(data))
        self._at += len(data)
        for part, bytes_ in ((self._rows, data[:rows]), (self._states, data[rows:])):
            if len(bytes_):
                part.update(bytes_)

    def __enter__(self) -> PartitionChecksum:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._thread is not None:
            self._thread.shutdown()
