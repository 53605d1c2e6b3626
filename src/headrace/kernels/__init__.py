"""The operations everything else is made of. Each stands beside its plain-torch reference."""

from headrace.kernels._aggregate import aggregate, aggregate_reference
from headrace.kernels._aggregate_sharded import aggregate_sharded, aggregate_sharded_reference
from headrace.kernels._attend import attend, attend_pairs, attend_pairs_reference, attend_reference
from headrace.kernels._dropout import draw_seed, dropout, dropout_reference, seed_for
from headrace.kernels._gather import gather, gather_reference
from headrace.kernels._prepared import Prepared, prepare
from headrace.kernels._round import round_to_bfloat16, round_to_bfloat16_reference
from headrace.kernels._sharded import ShardTable, add_sharded, gather_sharded, gather_sharded_reference
from headrace.kernels._softmax import softmax_rows_, softmax_rows_reference_
from headrace.kernels._tune import tune
from headrace.kernels.launch import Launch, launch_for

__all__ = [
    "Launch",
    "Prepared",
    "ShardTable",
    "add_sharded",
    "aggregate",
    "aggregate_reference",
    "aggregate_sharded",
    "aggregate_sharded_reference",
    "attend",
    "attend_pairs",
    "attend_pairs_reference",
    "attend_reference",
    "draw_seed",
    "dropout",
    "dropout_reference",
    "gather",
    "gather_reference",
    "gather_sharded",
    "gather_sharded_reference",
    "launch_for",
    "prepare",
    "round_to_bfloat16",
    "round_to_bfloat16_reference",
    "seed_for",
    "softmax_rows_",
    "softmax_rows_reference_",
    "tune",
]
