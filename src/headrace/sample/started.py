"""`StartedSample`: a sample that has been started."""

from __future__ import annotations

from collections.abc import Callable

from headrace.sample.sample import Sample


class StartedSample:
    """A sample under way; `finish` waits for it and returns it, always the same. One that is dropped gives back its memory."""

    def __init__(self, finish: Callable[[], Sample], release: Callable[[], None] | None = None) -> None:
        self._finish, self._release = finish, release
        self._sample: Sample | None = None

    def finish(self) -> Sample:
        """Wait for the sample and return it. On a GPU its tensors belong to the current stream."""
        if self._sample is None:
            try:
                self._sample = self._finish()
            finally:
                self._let_go()
        return self._sample

    def _let_go(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def __del__(self) -> None:
        self._let_go()
