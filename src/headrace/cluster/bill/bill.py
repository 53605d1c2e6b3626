"""`Bill`: what a run costs, and what it is worth beside others.

C = T sum(server $/h) / 3600 + sum over calls (ceil(ms) / 1000 GB p + r) + object requests, for T seconds, p dollars a GB-second and
r a request. Value is V = 1 / (T C) (Dorylus, Thorpe et al., OSDI'21).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from headrace.cluster.bill.calls import Call
from headrace.cluster.bill.prices import Prices, Server


@dataclass(frozen=True)
class Bill:
    """Dollars of a run of `seconds`, by what they are for.

    >>> ours, gpu = Bill(853, servers=2.67), Bill(1039, servers=10.60)
    >>> round(ours.value / gpu.value, 2)
    4.84
    """

    seconds: float
    servers: float
    calls: float = 0.0
    objects: float = 0.0

    @property
    def total(self) -> float:
        return math.fsum((self.servers, self.calls, self.objects))

    @property
    def value(self) -> float:
        """V = 1 / (T C)."""
        return 1 / (self.seconds * self.total) if self.seconds * self.total else math.inf


def bill_of(seconds: float, servers: Sequence[Server], calls: Iterable[Call], prices: Prices) -> Bill:
    """What a run costs that took so long on these servers. Only calls to Lambda are billed; other workers are on servers."""
    billed = [call for call in calls if call.kind == "lambda"]
    return Bill(
        seconds,
        servers=servers_price(seconds, servers),
        calls=math.fsum(call_price(call, prices) for call in billed),
        objects=math.fsum(call.objects * object_price(prices) for call in billed),
    )


def servers_price(seconds: float, servers: Sequence[Server]) -> float:
    """Dollars of servers for so long."""
    return seconds * math.fsum(server.hour for server in servers) / 3600


def call_price(call: Call, prices: Prices) -> float:
    """Dollars of a call to Lambda, rounded up to a millisecond; without its objects."""
    return math.ceil(call.ms) / 1000 * call.gb * prices.gb_second + prices.request


def object_price(prices: Prices) -> float:
    """Dollars of a request to the object store: an object is written once and read once, so the mean of both."""
    return (prices.put + prices.get) / 2


def threshold(server: Server, prices: Prices) -> float:
    """The share of time in which cores must be busy to be cheaper in a server than in workers: a vCPU's price here over there.

    >>> from headrace.cluster.bill.prices import read_prices
    >>> prices = read_prices()
    >>> round(threshold(prices.server("c5.2xlarge"), prices), 2)
    0.41
    """
    in_workers = prices.gb_per_vcpu * prices.gb_second * 3600
    return server.hour / server.vcpus / in_workers if in_workers else math.inf


def vcpus(call: Call, prices: Prices) -> float:
    """Cores of a worker, by its memory; one where it has none of its own."""
    return call.gb / prices.gb_per_vcpu if call.gb else 1.0


def burst(calls: Iterable[Call], prices: Prices) -> float:
    """The most vCPUs of workers that were busy at one time."""
    calls = list(calls)
    begins = [(call.began, vcpus(call, prices)) for call in calls]
    ends = [(call.began + call.ms / 1000, -vcpus(call, prices)) for call in calls]
    return max(accumulate(cores for _, cores in sorted(begins + ends)), default=0.0)  # at one time, ends come first


def busy_share(calls: Iterable[Call], seconds: float, prices: Prices) -> float | None:
    """The share of `seconds` in which cores for the largest burst would be busy; None without calls."""
    calls = list(calls)
    most = burst(calls, prices)
    if not most or not seconds:
        return None
    return math.fsum(call.ms / 1000 * vcpus(call, prices) for call in calls) / (most * seconds)
