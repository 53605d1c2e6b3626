"""`Controller`: a server's own table of tasks. Calls may be lost, repeated or late; a result counts once, by its task's key."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from threading import Condition, Lock, RLock, Thread
from types import TracebackType
from typing import Generic

from headrace.cluster.elastic.control.launches import Arrays, K, Launch, Pending, results_of
from headrace.cluster.elastic.control.patience import Patience
from headrace.cluster.elastic.control.records import CallRecord, Counts
from headrace.cluster.elastic.workers.executors.pool import Call, Function, PoolExecutor, Usage
from headrace.cluster.elastic.workers.payload import TaskError, pack_batch
from headrace.cluster.elastic.workers.step import Step
from headrace.cluster.elastic.workers.work import run_task

_TICK = 0.05  # seconds between two looks at calls that may be late


class Controller(Generic[K]):
    """Launches tasks on an executor and hands out their results.

    executor: any, while it lives; one of ours also tells what a call took.
    patience: after which a task is launched again, by default with the executor's floor. The first result counts, whichever call
    it is of; an error of a call that was given up does not.
    failures: a task that fails so often by the same kind of error ends the run, see `next_result`.
    rest: seconds before a task that failed is launched again, four times as long if it failed alike before: a network cut for
    a moment ends no run.
    batch: how many small tasks make one call; they wait for one another up to `linger` seconds.
    log: is called with a `CallRecord` of every call, before its results are handed out.
    observe: is called with the steps LAUNCHED, RETURNED, ACCEPTED and RETIRED of every task, on the thread that makes the step.

        with ThreadExecutor(4) as executor, Controller(executor) as controller:
            controller.launch(key, pack_task("apply_vertex", {}, arrays))
            key, arrays = controller.next_result()
            ...  # use it
            controller.retire(key)
    """

    def __init__(
        self,
        executor: Executor,
        *,
        function: Function = run_task,
        patience: Patience | None = None,
        failures: int = 3,
        rest: float = 0.2,
        batch: int = 1,
        linger: float = 0.002,
        log: Callable[[CallRecord], object] | None = None,
        observe: Callable[[Step, K], object] | None = None,
    ) -> None:
        if failures < 1 or batch < 1:
            raise ValueError(f"failures and batch must be at least 1, not {failures} and {batch}")
        self.executor, self.counts = executor, Counts()
        self._function = function
        self._patience = patience or Patience(floor=getattr(executor, "floor", 0.5))
        self._failures, self._batch, self._linger = failures, batch, linger
        self._log, self._observe = log or (lambda record: None), observe or (lambda step, key: None)
        self._tasks: dict[K, Pending[K]] = {}
        self._launches: dict[Future[bytes], Launch[K]] = {}  # a future knows no launch: a cycle would keep their bytes
        self._rest, self._resting = rest, list[Pending[K]]()  # tasks that failed, and are to be launched again
        self._gathered: list[Pending[K]] = []  # of the next batch
        self._gathered_at = 0.0
        self._active_until = 0.0
        self._ready: deque[tuple[K, Arrays]] = deque()
        self._error: BaseException | None = None
        self._closed = False
        lock = RLock()  # of two conditions, so that a launch or a result wakes nobody who does not wait for it
        self._changed, self._watching = Condition(lock), Condition(lock)  # of `next_result`, and of `_watch`
        self._logging = Lock()
        self._thread = Thread(target=self._watch, name="headrace.Controller", daemon=True)
        self._thread.start()

    @property
    def under_way(self) -> int:
        """Tasks that are launched and not retired."""
        return len(self._tasks)

    @property
    def waiting(self) -> int:
        """Results that nobody took yet."""
        return len(self._ready)

    def launch(self, key: K, payload: bytes) -> None:
        """Have a task computed. Its key must not be that of a task under way."""
        with self._changed:
            self._require_open()
            if key in self._tasks:
                raise ValueError(f"task {key} is under way already")
            if not self._tasks:
                self._active_until = time.monotonic()
            task = self._tasks[key] = Pending(key, payload)
            self.counts.tasks += 1
            groups = self._grouped(task)
            if self._gathered:
                self._watching.notify()
        for group in groups:
            self._submit(group)

    def next_result(self, timeout: float | None = None) -> tuple[K, Arrays]:
        """The next task that was computed, and its arrays. Call `retire` when they are used.

        TaskError if a task has failed for good; TimeoutError if there is no result within `timeout` seconds.
        """
        with self._changed:
            if not self._ready:
                self._wait(timeout)
            self._require_open()
            if not self._ready:
                raise TimeoutError(f"no result in {timeout:g} seconds; {len(self._tasks)} tasks are under way")
            return self._ready.popleft()

    def _wait(self, timeout: float | None) -> None:
        """For a result, or for what ends all. Counts the seconds. Under the lock."""
        begin, queued = time.monotonic(), getattr(self.executor, "queued", 0)
        self._changed.wait_for(lambda: self._ready or self._error or self._closed, timeout)
        seconds = time.monotonic() - begin
        self.counts.waited += seconds
        self.counts.starved += seconds if queued else 0.0

    def retire(self, key: K) -> None:
        """Forget a task whose result was used. Results of it that are still to come are dropped and counted."""
        with self._changed:
            task = self._tasks.get(key)
            if task is None or task.step != Step.ACCEPTED:
                raise ValueError(f"task {key} cannot be retired: it has no result")
            task.step = Step.RETIRED
            del self._tasks[key]
            now = time.monotonic()
            self.counts.active, self._active_until = self.counts.active + now - self._active_until, now
        self._observe(Step.RETIRED, key)

    def close(self) -> None:
        """Cancel what is under way. The executor stays as it is."""
        with self._changed:
            launches, self._launches = list(self._launches.values()), {}
            self._closed = True
            self._wake_all()
        for launch in launches:
            if not launch.future.cancel() and launch.began is not None:
                self._record(launch, duplicates=0, gets=0, failed="Abandoned")
        self._thread.join()

    def __enter__(self) -> Controller[K]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise RuntimeError("this controller was closed")

    def _grouped(self, task: Pending[K]) -> list[list[Pending[K]]]:
        """Tasks that make a call now that this one has come. Under the lock."""
        if self._batch == 1:
            return [[task]]
        groups = []
        limit = getattr(self.executor, "payload_limit", None)
        if limit is not None and sum(len(other.payload) + 256 for other in [*self._gathered, task]) > limit:
            groups.append(self._take_batch())
        if not self._gathered:
            self._gathered_at = time.monotonic()
        self._gathered.append(task)
        if len(self._gathered) == self._batch:
            groups.append(self._take_batch())
        return [group for group in groups if group]

    def _take_batch(self) -> list[Pending[K]]:
        group, self._gathered = self._gathered, []
        return group

    def _submit(self, tasks: list[Pending[K]], *, relaunched: bool = False) -> None:
        payload = tasks[0].payload if len(tasks) == 1 else pack_batch([task.payload for task in tasks])
        launch = Launch(tasks, self.executor.submit(self._function, payload), time.monotonic(), relaunched)
        with self._changed:
            if self._closed:
                launch.future.cancel()
                return
            self._launches[launch.future] = launch
            self.counts.calls += 1
            for task in tasks:
                task.awaited += 1
                self.counts.relaunched += relaunched
        for task in tasks:
            self._observe(Step.LAUNCHED, task.key)
        launch.future.add_done_callback(self._ended)

    def _ended(self, future: Future[bytes]) -> None:
        with self._changed:
            if (launch := self._launches.pop(future, None)) is None:  # `close` has recorded it
                return
        try:
            self._settle(launch)
        except BaseException as error:  # a future would swallow it
            self._end(error)

    def _settle(self, launch: Launch[K]) -> None:
        results, gets = results_of(launch)
        for task in launch.tasks:
            self._observe(Step.RETURNED, task.key)
        accepted: list[tuple[K, Arrays]] = []
        again: list[Pending[K]] = []
        duplicates, failed = 0, ""
        with self._changed:
            for task, result in zip(launch.tasks, results, strict=True):
                task.awaited -= not launch.given_up
                if isinstance(result, TaskError):
                    failed = failed or result.kind
                    if task.step < Step.ACCEPTED and not launch.given_up and self._may_try_again(task, result):
                        again.append(task)
                elif task.step < Step.ACCEPTED:
                    task.step = Step.ACCEPTED
                    accepted.append((task.key, result))
                else:
                    duplicates += 1
            if accepted and launch.began is not None:
                self._patience.ended(launch.keys, time.monotonic() - launch.began)
        self._record(launch, duplicates=duplicates, gets=gets, failed=failed)
        for key, _ in accepted:
            self._observe(Step.ACCEPTED, key)
        with self._changed:
            self._ready.extend(accepted)
            self._changed.notify_all()
            for task in again:
                task.rests_until = time.monotonic() + self._rest * 4.0 ** (max(task.failures.values()) - 1)
            self._resting += again
            if self._error is not None:
                self._wake_all()

    def _may_try_again(self, task: Pending[K], error: TaskError) -> bool:
        """Whether a task that failed is to be launched: not while another call of it is awaited, nor after too many failures."""
        task.failures[error.kind] += 1
        if task.failures[error.kind] >= self._failures:
            self._error = self._error or error
        return self._error is None and not self._closed and task.awaited == 0

    def _record(self, launch: Launch[K], *, duplicates: int, gets: int, failed: str) -> None:
        began = launch.at if launch.began is None else launch.began
        seconds = time.monotonic() - began
        usage = launch.future.usage if isinstance(launch.future, Call) else Usage("other")
        record = CallRecord(
            keys=tuple(launch.keys),
            begin=time.time() - seconds,
            milliseconds=usage.milliseconds or seconds * 1e3,
            worker=usage.worker,
            bytes_in=usage.bytes_in,
            bytes_out=usage.bytes_out,
            puts=usage.puts,
            gets=usage.gets + gets,
            throttled=usage.throttled,
            relaunched=launch.relaunched,
            duplicates=duplicates,
            failed=failed,
        )
        with self._logging:
            self.counts.duplicates += duplicates
            self.counts.failed += bool(failed)
            self.counts.throttled += usage.throttled
            self.counts.computed += seconds
            self._log(record)

    def _end(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._wake_all()

    def _wake_all(self) -> None:
        """No more results will come. Under the lock."""
        self._changed.notify_all()
        self._watching.notify_all()

    def _watch(self) -> None:
        """Launch what is late again, and a batch that has waited long enough."""
        while True:
            with self._changed:
                if self._closed or self._error is not None:
                    return
                late = [launch for launch in self._launches.values() if self._is_late(launch)]
                for launch in late:
                    launch.given_up = True
                    for task in launch.tasks:
                        task.awaited -= 1
                        task.times_late += 1
                again = [task for launch in late for task in launch.tasks if task.step < Step.ACCEPTED]
                again += self._take_rested()
                left = self._gathered_at + self._linger - time.monotonic()
                batch = self._take_batch() if self._gathered and left <= 0 else []
                if not (again or batch):
                    self._watching.wait(min(left, _TICK) if self._gathered else min(_TICK, self._patience.floor / 4))
                    continue
            try:
                for launch in late:
                    if isinstance(self.executor, PoolExecutor) and isinstance(launch.future, Call):
                        self.executor.replace(launch.future)
                for task in again:
                    self._submit([task], relaunched=True)
                if batch:
                    self._submit(batch)
            except BaseException as error:
                self._end(error)

    def _take_rested(self) -> list[Pending[K]]:
        """Tasks that failed a while ago, and have no result since. Under the lock."""
        now = time.monotonic()
        rested = [task for task in self._resting if task.rests_until <= now]
        self._resting = [task for task in self._resting if task.rests_until > now]
        return [task for task in rested if task.step < Step.ACCEPTED and not task.awaited]

    def _is_late(self, launch: Launch[K]) -> bool:
        if launch.given_up or launch.began is None:
            return False
        times_late = max(task.times_late for task in launch.tasks)
        allowed = self._patience.seconds(launch.keys, times_late=times_late)
        return time.monotonic() - launch.began > allowed
