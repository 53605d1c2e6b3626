"""`Beats`: what every rank says of itself, written to the job's store and read from it by a thread of its own."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from time import monotonic, sleep
from typing import Any, Literal

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from headrace.pipeline.workers import Workers

State = Literal["running", "left", "failed", "ending"]


@dataclass(frozen=True)
class Beat:
    """The last message of a rank about itself. `heard`: the ranks that it knows to have ended."""

    count: int = 0
    state: State = "running"
    reason: str = ""  # its traceback if it failed; if it is ending, which rank is to blame
    heard: tuple[int, ...] = ()


class Beats:
    """Writes this rank's beat and reads all of them, once an interval. `rounds` counts the rounds in which the store answered.

    `host`: the rank that hosts the store.

    The thread may block, or fail, when the store is gone; whoever looks at `latest` and `rounds` does not.
    """

    def __init__(self, store: Any, keys: list[str], rank: int, *, host: int | None, interval: float, patience: float) -> None:
        self._store, self._keys, self.rank, self.host, self.interval = store.clone(), keys, rank, host, interval
        self._store.set_timeout(timedelta(seconds=patience))
        self.latest = [Beat()] * len(keys)
        self.rounds = 0
        self.error = ""  # of the store: a broken connection stays broken
        self._word: tuple[State, str] = ("running", "")
        self._written: tuple[State, str] = self._word
        self._wake, self._closed = threading.Event(), threading.Event()
        self._workers = Workers("this heartbeat", self._stop)
        self._write(Beat())

    def start(self) -> None:
        """Start the thread, once all ranks have written their first beat."""
        self._workers.start(self._serve, name="headrace.Beats")

    def say(self, state: State, reason: str = "", *, wait: float) -> None:
        """Change what this rank says of itself; wait at most so many seconds until the store has it."""
        word = self._word = (state, reason)
        self._wake.set()
        deadline = monotonic() + wait
        while self._written is not word and monotonic() < deadline:
            sleep(0.005)

    def wait_until_heard(self, seconds: float, *, by: Iterable[int]) -> None:
        """On the host, with which the store ends: wait at most so many seconds until these ranks know that it is not running."""
        if self.rank != self.host:
            return
        deadline = monotonic() + seconds
        while monotonic() < deadline and not self.error:
            others = [self.latest[rank] for rank in by if rank != self.rank]
            if all(beat.state != "running" or self.rank in beat.heard for beat in others):
                return
            self._wake.set()  # read as often as it takes
            sleep(self.interval / 10)

    def close(self, *, wait: float) -> None:
        """End the thread, and wait at most so many seconds for it: one that is in the store when the interpreter ends aborts it."""
        self._stop()
        self._workers.join(wait)

    def _stop(self) -> None:
        self._closed.set()
        self._wake.set()

    def _serve(self) -> None:
        while not self._closed.is_set():
            self._wake.clear()
            word, heard = self._word, _not_running(self.latest)
            try:
                self._write(Beat(self.latest[self.rank].count + 1, *word, heard))
                self._written = word
                self.latest = [_decoded(text) for text in self._store.multi_get(self._keys)]
                self.rounds += 1
            except Exception as error:
                self.error = str(error).partition("\n")[0]
                return
            if _not_running(self.latest) == heard:  # otherwise tell at once that it was heard
                self._wake.wait(self.interval)
            elif self.host is not None and self.host != self.rank and self.latest[self.host].state == "left":
                self._write(Beat(self.latest[self.rank].count + 1, *word, _not_running(self.latest)))
                return  # the store is about to end

    def _write(self, beat: Beat) -> None:
        self._store.set(self._keys[self.rank], json.dumps(asdict(beat)))


def store_host(store: Any) -> int | None:
    """The number in the job of the rank that hosts `store` and ends with it: None where that is torchrun's agent, or a file."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return 0 if isinstance(store, dist.TCPStore) and not by_agent else None  # type: ignore[attr-defined]


def _not_running(beats: list[Beat]) -> tuple[int, ...]:
    return tuple(rank for rank, beat in enumerate(beats) if beat.state != "running")


def _decoded(text: bytes) -> Beat:
    fields = json.loads(text)
    return Beat(fields["count"], fields["state"], fields["reason"], tuple(fields["heard"]))
