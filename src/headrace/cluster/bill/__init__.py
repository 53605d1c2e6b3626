"""What servers and calls cost: prices with a date, the log of calls, and a bill. Training reads it for its budget."""

from headrace.cluster.bill.bill import Bill, bill_of, threshold
from headrace.cluster.bill.calls import Call, read_calls
from headrace.cluster.bill.prices import Prices, Server, read_prices

__all__ = ["Bill", "Call", "Prices", "Server", "bill_of", "read_calls", "read_prices", "threshold"]
