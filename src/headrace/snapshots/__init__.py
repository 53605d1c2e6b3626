"""Training on snapshot sequences (BLAD, Fu et al., SC'23): groups, who takes which, operators that overlap or run ahead."""

from headrace.snapshots.balance import Balance, balance, equal, sequential
from headrace.snapshots.check import check_cell
from headrace.snapshots.costs import Costs
from headrace.snapshots.kept import KeptSums
from headrace.snapshots.operators import Operators
from headrace.snapshots.overlap import Overlap, Placed, Task, overlap
from headrace.snapshots.rows import Group, WholeRows, block_diagonal

__all__ = [
    "Balance",
    "Costs",
    "Group",
    "KeptSums",
    "Operators",
    "Overlap",
    "Placed",
    "Task",
    "WholeRows",
    "balance",
    "block_diagonal",
    "check_cell",
    "equal",
    "overlap",
    "sequential",
]
