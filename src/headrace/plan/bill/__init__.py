"""What a run costs in dollars: prices, the log of its calls, its bill, and what it would have cost otherwise."""

from headrace.plan.bill.bill import Bill, bill_of, threshold
from headrace.plan.bill.calls import Call, read_calls
from headrace.plan.bill.logged import LoggedUse, read_use
from headrace.plan.bill.priced import PricedRun, WhatIf, price_run
from headrace.plan.bill.prices import Prices, Server, read_prices

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
