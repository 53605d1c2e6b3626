"""Processes that work together: who they are, what they exchange, and how each learns that another is gone."""

from headrace.ranks.exchange import Exchange, Traffic, Transfer
from headrace.ranks.gradients import gradient_bytes, sum_gradients
from headrace.ranks.heartbeat import Heartbeat, guarded
from headrace.ranks.join import device_of, join
from headrace.ranks.patience import on_first
from headrace.ranks.process import RankGoneError, machine
from headrace.ranks.ranks import Alone, GroupRanks, Ranks, ranks_of, together
from headrace.ranks.turns import Pending, Turns

__all__ = [
    "Alone",
    "Exchange",
    "GroupRanks",
    "Heartbeat",
    "Pending",
    "RankGoneError",
    "Ranks",
    "Traffic",
    "Transfer",
    "Turns",
    "device_of",
    "gradient_bytes",
    "guarded",
    "join",
    "machine",
    "on_first",
    "ranks_of",
    "sum_gradients",
    "together",
]
