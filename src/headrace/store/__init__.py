"""Rows by node id, wherever they lie, and the buffers they are gathered into."""

from headrace.store.array import ArrayStore
from headrace.store.cache_use import CacheSeconds, CacheUse
from headrace.store.cached import Cached
from headrace.store.disk import FileRows
from headrace.store.heap import kept_memory
from headrace.store.hot import access_counts, access_probability, expected_hit_rate, hot_order
from headrace.store.pool import BufferPool, PoolUse
from headrace.store.store import Store
from headrace.store.tiered import Tiered
from headrace.store.tiers import TieredUse, TierUse

__all__ = [
    "ArrayStore",
    "BufferPool",
    "CacheSeconds",
    "CacheUse",
    "Cached",
    "FileRows",
    "PoolUse",
    "Store",
    "TierUse",
    "Tiered",
    "TieredUse",
    "access_counts",
    "access_probability",
    "expected_hit_rate",
    "hot_order",
    "kept_memory",
]
