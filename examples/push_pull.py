"""Ranks that hold columns of the features each: their first layer together, and the bytes beside those of fetching rows.

torchrun --nproc-per-node 2 examples/push_pull.py      # or alone: one rank that holds all columns
"""

import headrace as hr
from headrace.cluster.traffic import fetched, pulled_by
from headrace.ranks import join
from headrace.train.nodes.over_ranks.parallel import mean_block

data = hr.generate.community(nodes=3000, edges=30_000, classes=4, features=256, seed=1)
options = hr.train.NodeOptions(hidden=16, fanout=(5, 5), batch_size=100, epochs=10, accumulate=4, parallel="push_pull")

with join() as ranks:
    result = hr.train.node(data, options)
    if ranks.rank == 0:
        block = mean_block(data, options)
        rows = fetched(block, ranks=4, features=data.num_features)
        sums = pulled_by(result.model.layers[0].split(), block, team=4)
        print(f"{ranks.size} ranks: test accuracy {result.test_accuracy:.1%}")
        print(f"on four ranks a batch would send {rows / 1e3:.0f} kB of features, or {sums / 1e3:.0f} kB of sums")
