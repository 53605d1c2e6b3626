"""`Pending` tasks and the `Launch`es that compute them, and what a launch that ended came to."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor

from headrace.cluster.elastic.control.patience import TaskKey
from headrace.cluster.elastic.workers.executors.pool import Call, WorkerLostError
from headrace.cluster.elastic.workers.payload import TaskError, read_result, unpack_batch
from headrace.cluster.elastic.workers.step import Step

K = TypeVar("K", bound=TaskKey)
Arrays = dict[str, Tensor]


@dataclass(eq=False)
class Pending(Generic[K]):
    """A task that is launched and not retired."""

    key: K
    payload: bytes
    step: Step = Step.LAUNCHED
    awaited: int = 0  # calls under way that are not late
    times_late: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    rests_until: float = 0.0  # after a failure, when it may be launched again


@dataclass(eq=False)
class Launch(Generic[K]):
    """A call that is under way."""

    tasks: list[Pending[K]]
    future: Future[bytes]
    at: float
    relaunched: bool
    given_up: bool = False

    @property
    def keys(self) -> list[K]:
        """Of its tasks."""
        return [task.key for task in self.tasks]

    @property
    def began(self) -> float | None:
        """When a worker got it; None while it waits for one."""
        return self.future.began if isinstance(self.future, Call) else self.at


def results_of(launch: Launch[K]) -> tuple[Sequence[Arrays | TaskError], int]:
    """What each task of a call that ended came to, and how many objects they read."""
    try:
        result = launch.future.result()
        parts: Sequence[bytes | memoryview] = [result] if len(launch.tasks) == 1 else unpack_batch(result)
        if len(parts) != len(launch.tasks):
            raise ValueError(f"a batch of {len(launch.tasks)} tasks has {len(parts)} results")
    except BaseException as error:  # of the worker, whatever it is: SystemExit too
        return [_as_task_error(error, task.key) for task in launch.tasks], 0
    results: list[Arrays | TaskError] = []
    gets = 0
    for task, part in zip(launch.tasks, parts, strict=True):
        try:
            facts, arrays = read_result(part, task.key)
            results.append(arrays)
        except TaskError as error:
            facts = error.facts
            results.append(error)
        except (ValueError, LookupError, TypeError) as error:  # no result at all
            facts = {}
            results.append(_as_task_error(error, task.key))
        gets += facts.get("gets", 0)
    return results, gets


def _as_task_error(error: BaseException, key: K) -> TaskError:
    if isinstance(error, TaskError):
        return TaskError(key, error.kind, error.message, error.remote)
    if isinstance(error, WorkerLostError):
        return TaskError(key, error.kind, error.message, "")
    return TaskError(key, type(error).__name__, str(error), "".join(traceback.format_exception(error)))
