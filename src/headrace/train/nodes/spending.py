"""`Spending`: the dollars that an elastic run has cost so far, beside its budget."""

from __future__ import annotations

from time import monotonic

from headrace.cluster.bill import Call, read_prices
from headrace.cluster.bill.bill import call_price, object_price
from headrace.cluster.elastic import CallRecord

_SERVER = "c5.2xlarge"  # as `headrace cost` prices a server


class Spending:
    """Of one server: its own hours and calls, by the prices that ship with Headrace. Each server has an equal share of `budget`.

    budget: dollars of all servers; 0 where there is none. `before`: what earlier parts of a resumed run have cost.
    """

    def __init__(self, budget: float, servers: int) -> None:
        self.budget, self.share, self.before = budget, budget / servers, 0.0
        self._prices, self._begin, self._calls = read_prices(), monotonic(), 0.0

    def add(self, record: CallRecord, gb: float) -> None:
        """A call has ended."""
        if record.worker == "lambda":
            call = Call("", 0.0, record.milliseconds, gb, "lambda")
            self._calls += call_price(call, self._prices) + (record.puts + record.gets) * object_price(self._prices)

    @property
    def dollars(self) -> float:
        """So far."""
        hours = (monotonic() - self._begin) / 3600
        return self.before + hours * self._prices.server(_SERVER).hour + self._calls

    @property
    def exceeded(self) -> str | None:
        """A sentence where the share is spent."""
        if not self.budget or self.dollars < self.share:
            return None
        return f"the budget of ${self.budget:g} is spent: give a larger --budget"
