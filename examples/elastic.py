"""Full-graph training by tasks: exact, whatever the number of servers and intervals; and what servers would send.

torchrun --nproc-per-node 2 examples/elastic.py      # or alone: one server that holds the whole graph
"""

import headrace as hr
from headrace.ranks import join

data = hr.generate.community(nodes=3000, edges=30_000, classes=4, features=32, seed=1)
usual = {"hidden": 16, "layers": 2, "epochs": 20, "lr": 0.02, "full_batch": True, "validate_every": 0}

with join() as ranks:
    by_tasks = hr.train.node(data, hr.train.NodeOptions(**usual, flow="pipe", intervals=8))
    if ranks.rank == 0:
        print(f"{ranks.size} servers with 8 intervals each: test accuracy {by_tasks.test_accuracy:.1%}")
        calls = 8 * (2 * usual["layers"] - 1)
        print(f"each makes {calls} calls of workers an epoch")
    if ranks.size == 1:
        whole = hr.train.node(data, hr.train.NodeOptions(**usual))
        print(f"one process, full_batch: {whole.test_accuracy:.1%}")
