"""`PricedRun`: a run's bill, what its workers were used for, and what it would have cost otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.cluster.bill.bill import Bill, bill_of, burst, busy_share, servers_price, threshold
from headrace.cluster.bill.calls import Call
from headrace.cluster.bill.prices import Prices, Server
from headrace.plan.bill.logged import LoggedUse


@dataclass(frozen=True)
class WhatIf:
    """Another way to have run it, and its bill. The time is the run's own, unless another is known."""

    name: str
    bill: Bill


@dataclass(frozen=True)
class PricedRun:
    """A run with its bill. `busy` is the share of time that cores for its workers' largest burst (`burst`, in vCPUs) would be busy.

    Workers are cheaper than such cores where `busy` is below `threshold`.
    """

    use: LoggedUse
    server: Server
    servers: int
    bill: Bill
    burst: float
    busy: float | None
    threshold: float
    what_ifs: Sequence[WhatIf]

    @property
    def call_totals(self) -> dict[str, int]:
        """Calls in all and of each kind; those whose results were not used; bytes and object requests."""
        calls = self.use.calls
        kinds = {kind: sum(call.kind == kind for call in calls) for kind in sorted({call.kind for call in calls})}
        names = ("relaunched", "duplicate", "failed", "sent", "received", "objects")
        return {"number": len(calls), **kinds, **{name: sum(getattr(call, name) for call in calls) for name in names}}

    def as_dict(self) -> dict[str, Any]:
        """The priced run as `headrace cost --json` prints it."""
        return {
            "run": str(self.use.path),
            "epochs": self.use.epochs,
            "ended": self.use.ended,
            "servers": {"type": self.server.name, "number": self.servers},
            **_figures(self.bill),
            "calls": {**self.call_totals, "burst_vcpus": self.burst},
            "communication": self.use.communication,
            "busy": self.busy,
            "threshold": self.threshold,
            "what_ifs": [{"name": what_if.name, **_figures(what_if.bill)} for what_if in self.what_ifs],
        }


def price_run(
    use: LoggedUse,
    prices: Prices,
    *,
    server: str = "c5.2xlarge",
    servers: int | None = None,
    gpu: str = "p3.2xlarge",
    gpu_seconds: float | None = None,
) -> PricedRun:
    """The bill of a run on `servers` machines of a type; by default as many as it had ranks.

    gpu_seconds: what the same training took on one machine of type `gpu`, if known.
    """
    kind, number = prices.server(server), use.servers if servers is None else servers
    if number < 1:
        raise ValueError(f"servers must be at least 1, not {number}")
    if use.on_gpu and not kind.gpus:
        known = ", ".join(one.name for one in prices.servers.values() if one.gpus)
        raise ValueError(f"{use.path} was trained on a GPU, and {server} has none: say which machine it was, as --server {known}")
    what_ifs = list(_what_ifs(use, kind, number, prices))
    if gpu_seconds is not None:
        what_ifs.append(_on_gpu(gpu_seconds, prices.server(gpu)))
    return PricedRun(
        use,
        kind,
        number,
        bill_of(use.seconds, [kind] * number, use.calls, prices),
        burst(use.calls, prices),
        busy_share(use.calls, use.seconds, prices),
        threshold(kind, prices),
        what_ifs,
    )


def _what_ifs(use: LoggedUse, kind: Server, number: int, prices: Prices) -> Iterator[WhatIf]:
    """Other machines, machines in place of workers on Lambda, and Lambda in place of other workers."""

    def bill(server: Server, count: int, calls: Iterable[Call]) -> Bill:
        return bill_of(use.seconds, [server] * count, calls, prices)

    for other in prices.servers.values():
        if other != kind and bool(other.gpus) == bool(kind.gpus):  # as many GPUs, or vCPUs
            count = math.ceil(number * (kind.gpus / other.gpus if kind.gpus else kind.vcpus / other.vcpus))
            yield WhatIf(f"{count} x {other.name}", bill(other, count, use.calls))
    if cores := burst((call for call in use.calls if call.kind == "lambda"), prices):
        count = number + math.ceil(cores / kind.vcpus)
        yield WhatIf(f"{count} x {kind.name}, no workers", bill(kind, count, ()))
    if any(call.kind != "lambda" for call in use.calls):  # of one vCPU where they have no memory of their own
        moved = (replace(call, kind="lambda", gb=call.gb or prices.gb_per_vcpu) for call in use.calls)
        yield WhatIf("all workers on Lambda", bill(kind, number, moved))


def _on_gpu(seconds: float, kind: Server) -> WhatIf:
    if not 0 < seconds < math.inf:
        raise ValueError(f"gpu_seconds must be a positive number, not {seconds}")
    if not kind.gpus:
        raise ValueError(f"gpu {kind.name} has no GPU")
    return WhatIf(f"1 x {kind.name}", Bill(seconds, servers_price(seconds, [kind])))


def _figures(bill: Bill) -> dict[str, Any]:
    parts = {"servers": bill.servers, "calls": bill.calls, "objects": bill.objects, "total": bill.total}
    return {"seconds": bill.seconds, "cost": parts, "value": bill.value if math.isfinite(bill.value) else None}
