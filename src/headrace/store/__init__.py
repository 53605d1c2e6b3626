"""Rows by node id, wherever they lie, and the buffers they are gathered into."""

from headrace.ranks.ranks import Ranks
from headrace.ranks.turns import Pending
from headrace.store.array import ArrayStore
from headrace.store.cache.cached import Cached
from headrace.store.cache.use import CacheSeconds, CacheUse
from headrace.store.column_slice import ColumnSlice, column_bounds
from headrace.store.disk.file_rows import FileRows
from headrace.store.disk.partitioned import Partitioned
from headrace.store.disk.use import PartitionedUse
from headrace.store.disk.walk import BufferStep, Hold, Walk
from headrace.store.heap import kept_memory, returned_memory
from headrace.store.once import once_per_machine
from headrace.store.pool import BufferPool, Buffers, PinnedBuffers, PoolUse
from headrace.store.remote.owners import HashOwners, Owners, TableOwners, hash_owners
from headrace.store.remote.probability import probability_owners
from headrace.store.remote.remote import Remote
from headrace.store.remote.use import RemoteUse
from headrace.store.shared import SharedRows
from headrace.store.store import BaseStore, Store, WritableStore
from headrace.store.tiers.counts import TieredUse, TierUse
from headrace.store.tiers.hot import access_counts, access_probability, expected_hit_rate, hot_order
from headrace.store.tiers.ipc import DeviceRowsHandle, open_device_rows, share_device_rows
from headrace.store.tiers.placed import rows_for
from headrace.store.tiers.placement import Placement, cliques, peer_access, place
from headrace.store.tiers.tiered import Tiered
from headrace.store.trained import TrainedArray, TrainedRows

__all__ = [
    "ArrayStore",
    "BaseStore",
    "BufferPool",
    "BufferStep",
    "Buffers",
    "CacheSeconds",
    "CacheUse",
    "Cached",
    "ColumnSlice",
    "DeviceRowsHandle",
    "FileRows",
    "HashOwners",
    "Hold",
    "Owners",
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
    "Store",
    "TableOwners",
    "TierUse",
    "Tiered",
    "TieredUse",
    "TrainedArray",
    "TrainedRows",
    "Walk",
    "WritableStore",
    "access_counts",
    "access_probability",
    "cliques",
    "column_bounds",
    "expected_hit_rate",
    "hash_owners",
    "hot_order",
    "kept_memory",
    "once_per_machine",
    "open_device_rows",
    "peer_access",
    "place",
    "probability_owners",
    "returned_memory",
    "rows_for",
    "share_device_rows",
]
