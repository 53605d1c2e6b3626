"""Rows by node id, and the buffers they are gathered into."""

from headrace.store.array import ArrayStore
from headrace.store.heap import kept_memory
from headrace.store.partition import HashPartition, Partition, TablePartition, hash_partition
from headrace.store.partition_probability import probability_partition
from headrace.store.pool import BufferPool, PoolUse
from headrace.store.remote import Remote
from headrace.store.remote_use import RemoteUse
from headrace.store.store import Store
from headrace.store.turns import Pending

__all__ = [
    "ArrayStore",
    "BufferPool",
    "HashPartition",
    "Partition",
    "Pending",
    "PoolUse",
    "Remote",
    "RemoteUse",
    "Store",
    "TablePartition",
    "hash_partition",
    "kept_memory",
    "probability_partition",
]
