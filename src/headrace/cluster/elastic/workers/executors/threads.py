"""`ThreadExecutor`: workers that are threads of this process, each with one thread of torch."""

from __future__ import annotations

from headrace.cluster.elastic.workers.executors.pool import Call, Function, PoolExecutor
from headrace.cluster.elastic.workers.torch_threads import keep_one_torch_thread


class ThreadExecutor(PoolExecutor[bool]):
    """The default: nothing to install, nothing to start, no bytes on a wire.

    >>> from headrace.cluster import ThreadExecutor
    >>> with ThreadExecutor(2) as executor:
    ...     executor.submit(bytes.upper, b"payload").result()
    b'PAYLOAD'
    """

    kind = "threads"

    def _open(self) -> bool:
        keep_one_torch_thread()
        return True

    def _run(self, worker: bool, call: Call, function: Function, payload: bytes) -> bytes:
        return function(payload)
