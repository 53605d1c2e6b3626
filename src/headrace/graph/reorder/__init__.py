"""Orders of nodes: neighbors close together, so that what one row fetches the next finds in the cache.

Each function returns a permutation `order`: `order[i]` is the id, as it is now, of the node that becomes i. `Graph.reordered` and
`Dataset.reorder` apply one; `auto` says whether that pays.
"""

from headrace.graph.reorder.cache import cache_misses
from headrace.graph.reorder.decide import Decision, auto
from headrace.graph.reorder.orders import ORDERS, degree, first_neighbor, metis, rabbit, rcm
from headrace.graph.topology.permutation import inverse

__all__ = ["ORDERS", "Decision", "auto", "cache_misses", "degree", "first_neighbor", "inverse", "metis", "rabbit", "rcm"]
