"""Rows by node id, and the buffers they are gathered into."""

from headrace.store.array import ArrayStore
from headrace.store.heap import kept_memory
from headrace.store.ipc import DeviceRowsHandle, open_device_rows, share_device_rows
from headrace.store.partition import HashPartition, Partition, TablePartition, hash_partition
from headrace.store.partition_probability import probability_partition
from headrace.store.placement import Placement, cliques, peer_access, place
from headrace.store.pool import BufferPool, PoolUse
from headrace.store.remote import Remote
from headrace.store.remote_use import RemoteUse
from headrace.store.shared import SharedRows
from headrace.store.store import Store
from headrace.store.turns import Pending

__all__ = [
    "ArrayStore",
    "BufferPool",
    "DeviceRowsHandle",
    "HashPartition",
    "Partition",
    "Pending",
    "Placement",
    "PoolUse",
    "Remote",
    "RemoteUse",
    "SharedRows",
    "Store",
    "TablePartition",
    "cliques",
    "hash_partition",
    "kept_memory",
    "open_device_rows",
    "peer_access",
    "place",
    "probability_partition",
    "share_device_rows",
]
