"""Which event comes next: a temporal GNN with node memory on a generated stream, by one trainer and by four.

Four trainers as 1x2x2: two epochs at once, on two copies of the memory.
"""

import headrace as hr

data = hr.generate.events(nodes=300, events=4000, repeat=0.6, seed=1)
print(hr.EventStream.of(data))
print(hr.temporal.schedule(1, 2, 2, batches=4).table())

for parallel in ("1x1x1", "1x2x2"):
    options = hr.train.TemporalOptions(epochs=4, hidden=32, batch_size=100, parallel=parallel, seed=1)
    test = hr.train.temporal(data, options).test
    heuristics = {name: round(figures["mrr"], 3) for name, figures in test["heuristic"].items()}
    print(f"{parallel}: test AP {test['ap']}, MRR among sampled destinations {test['mrr']}; MRR of heuristics {heuristics}")
