"""`Step`: the life of a task, in order. Whoever watches a step may disturb it: tests end a worker at each."""

from __future__ import annotations

from enum import IntEnum


class Step(IntEnum):
    """Where a task is. The first and the last three are seen by the server, the others by its worker."""

    LAUNCHED = 0  # handed to the executor
    RECEIVED = 1  # a worker has the payload
    COMPUTING = 2  # arrays are there, the operation begins
    COMPUTED = 3  # the operation is done, nothing was sent
    RETURNED = 4  # a result is at the server
    ACCEPTED = 5  # it is the one that counts
    RETIRED = 6  # whoever waited for it has used it
