"""Train GraphSAGE to classify nodes, then predict over all neighbors."""

import headrace as hr

data = hr.generate.community(nodes=5_000, edges=100_000, classes=8, features=32, seed=0)
options = hr.train.NodeOptions(model="sage", hidden=64, fanout=(10, 5), epochs=5, batch_size=128, lr=0.01, seed=0)
result = hr.train.node(data, options=options, out="run")  # writes run/: options, metrics, a timeline, checkpoints

print(f"test accuracy {result.test_accuracy:.3f}, the best possible {data.info['best_accuracy']:.3f}")
rows = hr.train.infer(result.model, data, nodes=[0, 1, 2])  # exact: layer by layer, every neighbor
print("predicted classes of nodes 0, 1, 2:", rows.argmax(dim=1).tolist())
