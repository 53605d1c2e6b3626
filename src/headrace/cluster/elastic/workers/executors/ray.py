"""`RayExecutor`: workers that are processes of Ray, on this machine or a cluster."""

from __future__ import annotations

import os
from threading import Lock, Thread, current_thread
from typing import Any

from headrace.cluster.elastic.workers.executors.pool import Call, Function, PoolExecutor, WorkerLostError
from headrace.cluster.elastic.workers.extras import require_ray


class RayExecutor(PoolExecutor[Any]):
    """An actor per worker. Ray repeats nothing: a lost worker is told to the caller, and its thread starts another.

    address: of a cluster, whose machines have headrace installed. By default the one this process is connected to, or else one
    on this machine alone, which ends with the executor.
    cpus: that a worker reserves; 0 reserves none.

    A function is sent by name, so workers must be able to import its module.
    """

    kind = "ray"

    def __init__(self, workers: int, *, address: str | None = None, cpus: float = 1.0) -> None:
        self._ray = ray = require_ray()
        self._owns_ray = not ray.is_initialized()
        if self._owns_ray and address is not None:
            ray.init(address=address, log_to_driver=False)
        elif self._owns_ray:
            start_ray()
        self._cpus = cpus
        self._actor_class = ray.remote(num_cpus=cpus, max_restarts=0, max_task_retries=0)(_Actor)
        self._actors: dict[Thread, Any] = {}
        self._lock = Lock()
        super().__init__(workers)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls and end the workers; also Ray, if this executor started it."""
        super().shutdown(wait or (self._owns_ray and cancel_futures), cancel_futures=cancel_futures)
        if self._owns_ray and (wait or cancel_futures):
            self._owns_ray = False
            self._ray.shutdown()

    def _check(self, workers: int) -> None:
        there = self._ray.cluster_resources().get("CPU", 0.0)
        if workers * self._cpus > there:
            raise ValueError(
                f"{workers} workers of {self._cpus:g} CPUs are more than the {there:g} CPUs of Ray: "
                "use fewer, or cpus=0 to let them share"
            )

    def _open(self) -> Any:
        with self._lock:
            if self._shut:
                raise WorkerLostError("Shutdown", "the executor was shut down")
            actor = self._actor_class.remote()
            self._actors[current_thread()] = actor
        try:
            self._ray.get(actor.start.remote())
        except self._ray.exceptions.RayError as error:
            self._close(actor)
            raise WorkerLostError(type(error).__name__, str(error)) from error
        return actor

    def _run(self, worker: Any, call: Call, function: Function, payload: bytes) -> bytes:
        errors = self._ray.exceptions
        try:
            result: bytes = self._ray.get(worker.run.remote(function, payload))
        except errors.RayTaskError:
            raise
        except errors.RayError as error:
            raise WorkerLostError(type(error).__name__, str(error)) from error
        return result

    def _close(self, worker: Any) -> None:
        with self._lock:
            self._actors.pop(current_thread(), None)
        if self._ray.is_initialized():
            self._ray.kill(worker)

    def _interrupt(self) -> None:
        with self._lock:
            actors = list(self._actors.values())
        for actor in actors:
            self._ray.kill(actor)

    def _replaced(self, call: Call) -> None:
        with self._lock:  # it holds the CPUs that the other one needs
            actor = self._actors.get(call.thread) if call.thread is not None else None
        if actor is not None:
            self._ray.kill(actor)


def start_ray(cpus: int | None = None) -> None:
    """Start Ray on this machine, by default with all its CPUs. It listens on loopback, and sends nobody figures of its use."""
    ray = require_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    services = ray._private.services
    resolve = services.resolve_ip_for_localhost
    services.resolve_ip_for_localhost = lambda host: host  # else Ray takes 127.0.0.1 for the machine's address in the network
    try:
        ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    finally:
        services.resolve_ip_for_localhost = resolve


class _Actor:
    def start(self) -> None:
        """Returns when the process is there and has imported headrace."""

    def run(self, function: Function, payload: bytes) -> bytes:
        return function(payload)
