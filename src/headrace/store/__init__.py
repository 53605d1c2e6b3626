"""Rows by node id, wherever they lie, and the buffers they are gathered into."""

from headrace.store.array import ArrayStore
from headrace.store.cache_use import CacheSeconds, CacheUse
from headrace.store.cached import Cached
from headrace.store.disk import FileRows
from headrace.store.heap import kept_memory, returned_memory
from headrace.store.hot import access_counts, access_probability, expected_hit_rate, hot_order
from headrace.store.ipc import DeviceRowsHandle, open_device_rows, share_device_rows
from headrace.store.partition import HashPartition, Partition, TablePartition, hash_partition
from headrace.store.partition_probability import probability_partition
from headrace.store.partition_use import PartitionedUse
from headrace.store.partitioned import Partitioned
from headrace.store.placed import rows_for
from headrace.store.placement import Placement, cliques, peer_access, place
from headrace.store.pool import BufferPool, Buffers, PinnedBuffers, PoolUse
from headrace.store.ranks import Ranks
from headrace.store.remote import Remote
from headrace.store.remote_use import RemoteUse
from headrace.store.shared import SharedRows
from headrace.store.store import Store
from headrace.store.tiered import Tiered
from headrace.store.tiers import TieredUse, TierUse
from headrace.store.trained import InMemory, TrainedRows
from headrace.store.turns import Pending
from headrace.store.walk import Hold, Step, Walk

__all__ = [
    "ArrayStore",
    "BufferPool",
    "Buffers",
    "CacheSeconds",
    "CacheUse",
    "Cached",
    "DeviceRowsHandle",
    "FileRows",
    "HashPartition",
    "Hold",
    "InMemory",
    "Partition",
    "Partitioned",
    "PartitionedUse",
    "Pending",
    "PinnedBuffers",
    "Placement",
    "PoolUse",
    "Ranks",
    "Remote",
    "RemoteUse",
    "SharedRows",
    "Step",
    "Store",
    "TablePartition",
    "TierUse",
    "Tiered",
    "TieredUse",
    "TrainedRows",
    "Walk",
    "access_counts",
    "access_probability",
    "cliques",
    "expected_hit_rate",
    "hash_partition",
    "hot_order",
    "kept_memory",
    "open_device_rows",
    "peer_access",
    "place",
    "probability_partition",
    "returned_memory",
    "rows_for",
    "share_device_rows",
]
