"""Rows by node id, and the buffers they are gathered into."""

from headrace.store.array import ArrayStore
from headrace.store.cache_use import CacheSeconds, CacheUse
from headrace.store.cached import Cached
from headrace.store.heap import kept_memory
from headrace.store.pool import BufferPool, PoolUse
from headrace.store.store import Store

__all__ = ["ArrayStore", "BufferPool", "CacheSeconds", "CacheUse", "Cached", "PoolUse", "Store", "kept_memory"]
