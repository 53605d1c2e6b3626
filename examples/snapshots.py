"""Forecasts on sequences of graphs: groups of snapshots are dealt to ranks by their cost, with the same result.

torchrun --nproc-per-node 2 examples/snapshots.py      # or alone
"""

import headrace as hr
from headrace.ranks import join

snapshots = hr.generate.snapshots(nodes=100, edges=1000, steps=80, features=4, seed=1)
options = hr.train.SnapshotOptions(model="gclstm", window=6, hidden=16, groups=8, epochs=3, seed=1)

with join() as ranks:
    result = hr.train.snapshot(snapshots, options)
    if ranks.rank == 0:
        baselines = {name: round(errors["mse"], 4) for name, errors in result.baselines.items()}
        print(f"{ranks.size} ranks: test MSE {result.scores['test_mse']}; from the same windows {baselines}")

    if ranks.size == 1:  # who writes to whom next: snapshots of a stream of events have no features, so their links are forecast
        messages = hr.Snapshots.from_stream(hr.EventStream.of(hr.generate.events(nodes=100, events=4000)), count=100)
        result = hr.train.snapshot(messages, {"model": "tgcn", "window": 4, "epochs": 3, "groups": 8, "hidden": 8})
        baselines = {name: round(figures["mrr"], 3) for name, figures in result.baselines.items()}
        print(f"links: test MRR {result.scores['test_mrr']:.3f}; from the same windows {baselines}")

costs = [9.0, 1.0, 1.0, 2.0, 5.0, 4.0, 1.0, 1.0]
dealt = hr.snapshots.balance(costs, ranks=2)
print(f"groups of cost {costs} on two ranks: the busier one has {dealt.makespan:g}, and no deal has less than {dealt.bound:g}")
