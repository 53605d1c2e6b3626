"""The operations on rows and neighbors that layers, stores and samplers are made of, each beside its plain-torch reference.

A folder is one operation: what callers import, the reference, and the Triton kernels of a GPU; CPU kernels are in native/.
"""

from headrace.kernels._aggregate.aggregate import aggregate, aggregate_reference
from headrace.kernels._aggregate.launch import Launch, launch_for
from headrace.kernels._aggregate.prepared import Prepared, prepare
from headrace.kernels._aggregate.tune import tune
from headrace.kernels._attend.apart import attend_rows, column_gradients, row_gradients
from headrace.kernels._attend.attend import attend, attend_pairs, attend_pairs_reference, attend_reference
from headrace.kernels._attend.scores import Scores
from headrace.kernels._attend.whole import Whole
from headrace.kernels._attend_time.attend_time import attend_time, attend_time_reference
from headrace.kernels._dots.dots import dots, dots_reference
from headrace.kernels._dropout.dropout import draw_seed, dropout, dropout_reference, seed_for
from headrace.kernels._gather.gather import gather, gather_reference
from headrace.kernels._gather.sharded import ShardTable, add_sharded, gather_sharded, gather_sharded_reference
from headrace.kernels._gru.gru import gru_gates, gru_gates_reference
from headrace.kernels._round.round import round_to_bfloat16, round_to_bfloat16_reference
from headrace.kernels._softmax.softmax import softmax_rows_, softmax_rows_reference_

__all__ = [
    "Launch",
    "Prepared",
    "Scores",
    "ShardTable",
    "Whole",
    "add_sharded",
    "aggregate",
    "aggregate_reference",
    "attend",
    "attend_pairs",
    "attend_pairs_reference",
    "attend_reference",
    "attend_rows",
    "attend_time",
    "attend_time_reference",
    "column_gradients",
    "dots",
    "dots_reference",
    "draw_seed",
    "dropout",
    "dropout_reference",
    "gather",
    "gather_reference",
    "gather_sharded",
    "gather_sharded_reference",
    "gru_gates",
    "gru_gates_reference",
    "launch_for",
    "prepare",
    "round_to_bfloat16",
    "round_to_bfloat16_reference",
    "row_gradients",
    "seed_for",
    "softmax_rows_",
    "softmax_rows_reference_",
    "tune",
]
