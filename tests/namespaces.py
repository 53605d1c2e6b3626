"""Network namespaces for jobs of a test, which is skipped with the reason where they cannot be made."""

from contextlib import contextmanager

import pytest

from headrace.bench.namespaces import INTERFACE, Namespaces, missing


@contextmanager
def namespaces(size, *, rate=0.0):
    """So many of them, joined by a bridge, each behind a link of `rate` bits per second (0: no limit)."""
    if reason := missing():
        pytest.skip(reason)
    with Namespaces(size, rate=rate) as network:
        yield network


def in_namespaces(network, places):
    """What a `rank_jobs.Job` is told for rank r to run in namespace `places[r]`; rank 0's hosts the store."""
    return {
        "address": network.members[places[0]].address,
        "prefixes": {rank: network.members[place].prefix for rank, place in enumerate(places)},
        "environments": {rank: {"GLOO_SOCKET_IFNAME": INTERFACE} for rank in range(len(places))},
    }
