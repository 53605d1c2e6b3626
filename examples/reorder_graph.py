"""Nodes in the order of their communities: what one row fetches, the next ones find in the cache."""

import headrace as hr
from headrace.graph.topology.properties import window_reuse

data = hr.generate.community(nodes=20_000, edges=400_000, classes=10, features=32, block=100)
moved = data.reorder("rabbit")

for name, graph in (("as it came", data.graph), ("by communities", moved.graph)):
    misses = hr.reorder.cache_misses(graph, cache_bytes=256 << 10, row_bytes=32 * 4)
    print(f"{name:>15}: {window_reuse(graph):.2f} edges per row fetched by 32 rows, {misses:.0%} of reads miss 256 KiB")

# The data is the same under other ids, and tells which node was which.
assert moved.x.equal(data.x[moved.original_ids])

# Whether it pays is a matter of epochs: seconds saved against seconds spent.
for epochs in (1, 100):
    print(hr.reorder.auto(data.graph, 32, epochs=epochs, cache_bytes=256 << 10, bytes_per_second=5e9).reason)
