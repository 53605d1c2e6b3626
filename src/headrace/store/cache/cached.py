"""`Cached`: the rows of any store, with those that are used most kept near."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, check_ids, thread_count
from headrace._sizes import parse_size
from headrace.pipeline.workers import free_in_child
from headrace.store.cache.rows import CachedRows, DeviceRows, HostRows
from headrace.store.cache.use import CacheSeconds, CacheUse
from headrace.store.pool import BufferPool
from headrace.store.store import BaseStore, Store, WritableStore, check_out, check_rows

Policy = Literal["sieve", "lru", "clock", "s3fifo", "planned"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


class Cached(BaseStore):
    """A `Store` that keeps some rows of another one in memory or on a GPU.

    `capacity` is bytes (an int, or a text such as "4GiB"), or a float: a share of the rows. Each gather fetches the distinct rows
    that are not there in one gather of the wrapped store; rows that find no room go by the cache, so no request is too large. Rows
    that are there when a request begins are hits, wherever in it they come: none makes room for another row of its own request.
    Threads may gather at a time, and fetch at a time.

    Policies: "sieve" (NSDI'24), "lru", "clock", "s3fifo" (SOSP'23), and "planned", which takes the coming batches from `plan`
    and follows Belady's rule over the next `lookahead` of them: none that knows less does better.

    >>> import torch
    >>> from headrace.store import ArrayStore, Cached
    >>> store = Cached(ArrayStore(torch.arange(8.).view(4, 2)), 0.5)
    >>> for _ in range(2): rows = store.gather(torch.tensor([3, 1]))
    >>> rows.tolist(), store.use().hits, store.use().bytes_moved
    ([[6.0, 7.0], [2.0, 3.0]], 2, 16)
    """

    def __init__(
        self,
        store: Store,
        capacity: int | float | str,
        *,
        policy: Policy = "sieve",
        device: str | torch.device = "cpu",
        lookahead: int = 64,
        threads: int | None = None,
        pool: BufferPool | None = None,
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
        if lookahead < 1:
            raise ValueError(f"lookahead must be at least 1 batch, not {lookahead}")
        self.store = store
        self.policy = policy
        self.lookahead = lookahead
        self.shape, self.dtype = store.shape, store.dtype
        self.capacity_rows = _capacity_rows(capacity, len(self), self.row_bytes)
        shape = (self.capacity_rows, *store.shape[1:])
        place = torch.device(device)
        if place.type not in ("cpu", "cuda"):
            raise ValueError(f"device must be 'cpu' or 'cuda', not {str(device)!r}")
        self._rows: CachedRows
        if place.type == "cuda":
            self._rows = DeviceRows(shape, store.dtype, device=place)
        else:
            pool = pool if pool is not None else BufferPool(limit=256 << 20)
            self._rows = HostRows(shape, store.dtype, threads=thread_count(threads), pool=pool)
        self.device = self._rows.device  # of the cached rows, and of what `gather` returns
        nodes = len(self)
        self._plan = _native.PlannedCache(nodes, self.capacity_rows, lookahead) if policy == "planned" else None
        self._slots: _native.Cache = self._plan or _native.OnlineCache(policy, nodes, self.capacity_rows)
        self._coming: Iterator[Any] = iter(())
        self._announced = 0  # batches of the plan
        self._turn = free_in_child(threading.Condition())  # around the slots: which row is where, and the counts
        self._gathering = 0
        self._writers = 0  # waiting, or at it
        self.reset()

    def gather(self, ids: Tensor, *, out: Tensor | None = None, check: bool = True) -> Tensor:
        """Rows by id, on the cache's device. Ids are looked at in any case.  # [n] -> [n, d]"""
        wanted = self._checked(ids, "ids")
        if out is None:
            out = self._rows.empty((len(wanted), *self.shape[1:]))
        else:
            check_out(out, wanted, self, held=self._rows.rows)
        access, policy = self._begin(wanted)
        complete, fetch, copy = False, 0.0, 0.0
        try:
            begin = perf_counter()
            fetched = self._fetched(access, out)
            fetch = perf_counter() - begin
            if fetched is not out:
                self._rows.merge(access.source, fetched, out)
            self._rows.keep(access.fill, fetched)
            copy = perf_counter() - begin - fetch
            complete = True
        finally:
            self._end(access, complete, CacheSeconds(policy, fetch, copy))
        return out

    def add_(self, ids: Tensor, delta: Tensor) -> None:
        """Add `delta[i]` to row `ids[i]`, repeated ids included, in the wrapped store and in the cache.  # [n], [n, d]

        A gather sees all of it or nothing. Cached copies are read again from the wrapped store, whose arithmetic (order of repeated
        ids, rounding) thereby is the only one.
        """
        self._write(self._writable().add_, ids, delta, "delta")

    def put_(self, ids: Tensor, rows: Tensor) -> None:
        """Put `rows[i]` in place of row `ids[i]`, no id twice, in the wrapped store and in the cache.  # [n], [n, d]"""
        self._write(self._writable().put_, ids, rows, "rows")

    def _writable(self) -> WritableStore:
        if not isinstance(self.store, WritableStore):
            raise ValueError(f"the wrapped {type(self.store).__name__} has no add_ and put_: its rows cannot be written")
        return self.store

    def _write(self, write: Callable[[Tensor, Tensor], None], ids: Tensor, rows: Tensor, name: str) -> None:
        wanted = self._checked(ids, "ids")
        check_rows(wanted, rows, self, name)
        with self._turn:
            self._writers += 1  # from here on no gather begins
            try:
                self._turn.wait_for(lambda: self._gathering == 0)
                try:
                    write(self._for_store(wanted), self._for_store(rows))
                finally:  # a write that failed may have been done in part
                    self._read_again(wanted)
            finally:
                self._writers -= 1
                self._turn.notify_all()

    def plan(self, batches: Iterable[Tensor]) -> None:
        """The ids of the coming gathers, batch by batch, for policy "planned". It takes the place of an earlier plan.

        Batches are taken from the iterable as they are needed, `lookahead` ahead. A plan that ends with an epoch cannot know what
        the next one uses: give it the batches of all epochs.

        >>> import torch
        >>> from headrace.store import ArrayStore, Cached
        >>> batches = [torch.tensor(ids) for ids in ([0, 1], [2, 3], [0, 1])]
        >>> store = Cached(ArrayStore(torch.eye(4)), 0.5, policy="planned")
        >>> store.plan(batches)
        >>> for ids in batches: rows = store.gather(ids)
        >>> store.use().hits
        2
        """
        if self._plan is None:
            raise ValueError(f"plan is for policy='planned'; this cache has policy={self.policy!r}")
        with self._turn:
            self._plan.restart()
            self._coming = iter(batches)
            self._announced = 0

    def use(self) -> CacheUse:
        """What the cache did since it was made or `reset`."""
        with self._turn:
            return CacheUse(
                self.policy, self.capacity_rows, self._slots.rows_held, seconds=CacheSeconds(**self._seconds), **self._counts
            )

    def reset(self) -> None:
        """Counts and times start again from zero; the rows stay."""
        with self._turn:
            self._counts = dict.fromkeys(("requests", "hits", "misses", "bypassed", "evictions", "bytes_moved"), 0)
            self._seconds = dict.fromkeys(("policy", "fetch", "copy"), 0.0)

    def _begin(self, ids: Tensor) -> tuple[_native.Access, float]:
        with self._turn:
            self._turn.wait_for(lambda: self._writers == 0)
            seconds = self._look_ahead(ids) if self._plan is not None else 0.0
            begin = perf_counter()
            access = self._slots.access(ids)
            self._gathering += 1
            return access, seconds + perf_counter() - begin

    def _end(self, access: _native.Access, complete: bool, seconds: CacheSeconds) -> None:
        with self._turn:
            self._slots.finish(access, complete)
            self._gathering -= 1
            self._turn.notify_all()
            if not complete:
                return
            requests, fetched = len(access.source), len(access.fetch)
            self._counts["requests"] += requests
            self._counts["hits"] += access.hits
            self._counts["misses"] += requests - access.hits
            self._counts["bypassed"] += int((access.fill < 0).sum())
            self._counts["evictions"] += len(access.evicted)
            self._counts["bytes_moved"] += fetched * self.row_bytes
            for part in self._seconds:
                self._seconds[part] += getattr(seconds, part)

    def _fetched(self, access: _native.Access, out: Tensor) -> Tensor:
        ids = self._for_store(torch.from_numpy(access.fetch))
        if len(ids) == 0:
            return out[:0]
        all_missing = len(ids) == len(out)  # once each, so in order
        if all_missing and ids.device == self.device:
            return self.store.gather(ids, out=out)
        staging = self._rows.staging((len(ids), *self.shape[1:])) if ids.device.type == "cpu" else None
        fetched = self.store.gather(ids, out=staging)
        return out.copy_(fetched, non_blocking=self.device.type == "cuda") if all_missing else self._rows.received(fetched)

    def _for_store(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.store.device)

    def _read_again(self, ids: Tensor) -> None:
        held = self._slots.find(ids)
        if len(held.fetch) == 0:
            return
        try:
            rows = self.store.gather(self._for_store(torch.from_numpy(held.fetch)))
            self._rows.keep(held.fill, self._rows.received(rows))
        except BaseException:
            self._slots.forget(held.fill)
            raise
        self._counts["bytes_moved"] += len(held.fetch) * self.row_bytes

    def _look_ahead(self, ids: Tensor) -> float:
        """Announces coming batches until the window is full, and checks that `ids` are next. Gives the seconds of the former."""
        assert self._plan is not None
        seconds = 0.0
        while self._plan.announced <= self.lookahead and (batch := next(self._coming, None)) is not None:
            planned = self._checked(batch, f"batches[{self._announced}]")
            begin = perf_counter()
            self._plan.announce(planned)
            seconds += perf_counter() - begin
            self._announced += 1
        number = self._announced - self._plan.announced
        if self._plan.announced == 0:
            raise ValueError(f"gather {number} is not in the plan, which has {number} batches: call plan() with the coming batches")
        at = self._plan.first_difference(ids)
        if at >= 0:
            raise ValueError(f"batch {number} of the plan differs from the ids to gather, first at position {at}")
        return seconds

    def _checked(self, ids: Any, name: str) -> Tensor:
        if isinstance(ids, Tensor) and self.device.type != "cpu":
            ids = ids.cpu()
        wanted = as_ids(ids, name, dtype=torch.int64)
        check_ids(wanted, len(self), name=name)
        return wanted


def _capacity_rows(capacity: int | float | str, rows: int, row_bytes: int) -> int:
    """How many rows fit: no more than there are."""
    if isinstance(capacity, bool) or not isinstance(capacity, int | float | str):
        raise TypeError(f"capacity must be bytes (an int, or a text such as '4GiB') or a float share of the rows, not {capacity!r}")
    if isinstance(capacity, float):
        if not 0 <= capacity <= 1:
            raise ValueError(f"a float capacity is a share of the rows, from 0 to 1, not {capacity}: give bytes as an int")
        return int(capacity * rows)
    size = parse_size(capacity)
    if size < 0:
        raise ValueError(f"capacity must not be negative, got {capacity}")
    return min(size // max(row_bytes, 1), rows)
