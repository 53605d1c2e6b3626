"""`Heartbeat`: every rank shows that it lives, and ends when another does not."""

from __future__ import annotations

import os
import secrets
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep

import torch.distributed as dist

from headrace.ranks.beats import Beats, store_host
from headrace.ranks.process import Process, State
from headrace.ranks.ranks import Ranks
from headrace.ranks.verdict import Seen, verdict

_GRACE = 3.0  # seconds that a rank with an error has to end by itself


class Heartbeat:
    """Two threads on every rank: one writes beats to the job's store and reads those of the others, one judges what was read.

    All ranks end if one has ended without `close()`, is stopped, has not beaten for `patience` seconds, or told of an error by
    `fail`; a rank also ends if the store does not answer for as long. It prints on stderr which rank was to blame and why (its
    traceback if it told one), kills ranks of this machine that are stopped, does the clean-ups, and exits with status 1, whatever
    its main thread waits for. A process on this machine is looked up in /proc, so that its end is noticed within about two
    intervals.

    All ranks build it together. It has a connection of its own to the store of the default process group, so a program that is
    blocked there still beats; one that holds Python's global lock for longer than `patience` does not.

    Most programs use `guarded`.
    """

    def __init__(self, ranks: Ranks, *, interval: float = 1.0, patience: float = 5.0) -> None:
        if not 0 < interval < patience:
            raise ValueError(f"interval must be positive and less than patience, not {interval:g} and {patience:g}")
        self.ranks, self.interval, self.patience = ranks, interval, patience
        self._cleanups: list[Callable[[], object]] = []
        self._waits: list[Callable[[], str]] = []
        self._closed = threading.Event()
        self._failing = False
        self._failed_at: float | None = None
        if ranks.size == 1:
            self._closed.set()
            return
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("a heartbeat needs the store of torch.distributed: use headrace.ranks.join, or init_process_group")
        store = dist.distributed_c10d._get_default_store()
        hosts = dist.get_rank() == store_host(store)
        told = ranks.all_gather((Process.current(), hosts, secrets.token_hex(8)))
        self._processes: list[Process] = [process for process, _, _ in told]
        self._names = [f"rank {rank} ({process})" for rank, process in enumerate(self._processes)]
        self._host = next((rank for rank, (_, hosts, _) in enumerate(told) if hosts), None)
        keys = [f"headrace/heartbeat/{told[0][2]}/{rank}" for rank in range(ranks.size)]
        self._beats = Beats(store, keys, ranks.rank, host=self._host, interval=interval, patience=patience)
        self._lively = list(range(ranks.size))  # those that can hear this one
        ranks.barrier()  # all keys exist now
        self._beats.start()
        self._thread = threading.Thread(target=self._watch, name="headrace.Heartbeat", daemon=True)
        self._thread.start()

    def on_end(self, cleanup: Callable[[], object]) -> None:
        """Call `cleanup` before another rank's failure ends this process. It must not need the other ranks."""
        self._cleanups.append(cleanup)

    @contextmanager
    def waits_for(self, told: Callable[[], str]) -> Iterator[None]:
        """Within, add what `told` returns to the sentence in which this rank ends. It must not wait for anything itself."""
        self._waits.append(told)
        yield
        self._waits.remove(told)

    def fail(self, error: BaseException) -> None:
        """Tell the others of an error of this rank, which ends them. This process then has 3 seconds to end by itself.

        The error of a collective is rarely this rank's own: first the rank that caused it is looked for, which ends this process.
        """
        if self._closed.is_set() or self._failing:
            return
        if of_collective(error):
            sleep(self.patience + 2 * self.interval)
        self._failing = True
        self._beats.say("failed", "".join(traceback.format_exception(error)), wait=self.interval)
        self._beats.wait_until_heard(2 * self.interval, by=self._lively)
        self._failed_at = monotonic()

    def close(self) -> None:
        """Leave the job: the others no longer expect beats of this rank. Every rank calls it at the end."""
        if self._closed.is_set() or self._failing:
            return
        self._beats.say("left", wait=self.interval)
        self._beats.wait_until_heard(2 * self.interval, by=self._lively)
        self._closed.set()
        self._beats.close(wait=self.patience)
        self._thread.join(self.patience)

    def _watch(self) -> None:
        """Judge what was read, until there is a verdict. This thread touches no network, so nothing blocks it."""
        size = self.ranks.size
        counts, silence, stopped, ended_in = [0] * size, [0.0] * size, [False] * size, [-1] * size
        rounds, store_silence, last = 0, 0.0, monotonic()
        while not self._closed.wait(self.interval / 4):
            # If this process was stopped itself, or its whole machine, that is no silence of the others.
            passed, last = min(monotonic() - last, self.interval), monotonic()
            if self._failing:
                if self._failed_at is not None and last - self._failed_at > _GRACE:
                    self._clean_up()
                    os._exit(1)
                continue
            beats, answered = self._beats.latest, self._beats.rounds
            # One that was stopped, and was killed by a rank that noticed earlier, is still to be named for having been stopped.
            stopped = [at and beat.count <= count for at, beat, count in zip(stopped, beats, counts, strict=True)]
            states: list[State] = [
                "stopped" if at else process.state() for at, process in zip(stopped, self._processes, strict=True)
            ]
            stopped = [state == "stopped" for state in states]
            store_silence += passed
            if answered > rounds:  # while the store is silent nothing is known of the ranks
                for rank, beat in enumerate(beats):
                    silence[rank], counts[rank] = (0.0 if beat.count > counts[rank] else silence[rank] + store_silence), beat.count
                store_silence, rounds = 0.0, answered
            self._lively = [r for r in range(size) if states[r] not in ("ended", "stopped") and silence[r] < 2 * self.interval]
            ended_in = [rounds if state == "ended" and at < 0 else at for state, at in zip(states, ended_in, strict=True)]
            reason = verdict(
                [
                    Seen(self._names[r], beats[r], silence[r], states[r], rounds - ended_in[r] if ended_in[r] >= 0 else 0)
                    for r in range(size)
                ],
                me=self.ranks.rank,
                patience=self.patience,
                store_silence=store_silence,
                store_error=self._beats.error if store_silence > self.interval else "",  # its process needs a moment to end
                host=self._host,
            )
            if reason is not None and not self._failing:
                self._end(reason)

    def _end(self, reason: str) -> None:
        said = f"headrace: {self._names[self.ranks.rank]} ends. {reason}"
        for told in self._waits:
            with suppress(Exception):
                said = f"{said.rstrip('.')}. {told()}".rstrip()
        with suppress(OSError):  # nobody reads it: this process must end all the same
            os.write(2, f"{said}\n".encode())  # sys.stderr may be locked
        self._beats.say("ending", reason, wait=self.interval)
        for process in self._processes:
            process.kill_if_stopped()
        self._clean_up()
        self._beats.wait_until_heard(2 * self.interval, by=self._lively)
        os._exit(1)

    def _clean_up(self) -> None:
        def work() -> None:
            for cleanup in self._cleanups:
                with suppress(Exception):
                    cleanup()

        thread = threading.Thread(target=work, daemon=True)  # since one may wait for what the main thread holds
        thread.start()
        thread.join(1.0)


@contextmanager
def guarded(ranks: Ranks, *, interval: float = 1.0, patience: float = 5.0) -> Iterator[Heartbeat]:
    """Work with a heartbeat: an error here ends all ranks, and the end of another rank ends this one, within 10 seconds.

    Leave it on every rank when there is nothing left to do together. One process alone is not watched.

    >>> from headrace.ranks import guarded, join
    >>> with join() as ranks, guarded(ranks) as heartbeat:
    ...     ranks.all_gather(heartbeat.patience)
    [5.0]
    """
    heartbeat = Heartbeat(ranks, interval=interval, patience=patience)
    try:
        yield heartbeat
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            heartbeat.close()
        else:
            heartbeat.fail(error)
        raise
    heartbeat.close()


def of_collective(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, was raised by a collective or by the job's store."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        said = str(error)
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and ("gloo" in said or "NCCL" in said)):
            return True
        error = error.__cause__ or error.__context__
    return False
