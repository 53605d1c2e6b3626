"""What a run costs in dollars, by its log, and what it would have cost otherwise. Prices are in `headrace.cluster.bill`."""

from headrace.cluster.bill import Bill, Call, Prices, Server, bill_of, read_calls, read_prices, threshold
from headrace.plan.bill.logged import LoggedUse, read_use
from headrace.plan.bill.priced import PricedRun, WhatIf, price_run

__all__ = [
    "Bill",
    "Call",
    "LoggedUse",
    "PricedRun",
    "Prices",
    "Server",
    "WhatIf",
    "bill_of",
    "price_run",
    "read_calls",
    "read_prices",
    "read_use",
    "threshold",
]
