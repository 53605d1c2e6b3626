"""Training on snapshot sequences (BLAD, Fu et al., SC'23): groups, who takes which, operators that overlap or run ahead."""

from headrace.snapshots.balance import Balance, balance, equal, sequential
from headrace.snapshots.costs import Costs
from headrace.snapshots.operators import Group, KeptSums, Operators, block_diagonal, check_cell
from headrace.snapshots.overlap import Overlap, Placed, Task, overlap

__all__ = [
    "Balance",
    "Costs",
    "Group",
    "KeptSums",
    "Operators",
    "Overlap",
    "Placed",
    "Task",
    "balance",
    "block_diagonal",
    "check_cell",
    "equal",
    "overlap",
    "sequential",
]
