"""Ask how a model is best trained on a graph, and why; then hold the prediction against a measurement."""

import headrace as hr

data = hr.generate.community(nodes=5_000, edges=100_000, classes=8, features=128, seed=0)
machine = hr.plan.probe()  # a second; machine.save(path) and hr.plan.Machine.load(path) keep it

plan = hr.plan.advise(data, "gin", hidden=32, epochs=200, machine=machine)
print(plan)

model = plan.configuration.apply_to(hr.nn.GNN(128, 32, 8, layers=2, conv="gin"))
ready = plan.apply(data)  # reordered, and in the type that was chosen
print(ready, [layer.conv.order for layer in model.layers])

print(hr.plan.verify(plan, data, repeats=3))
