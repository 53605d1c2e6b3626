"""`Partitioned`: trained rows that do not fit in memory, in p files of which a buffer holds c."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from headrace._arrays import as_ids_near, check_ids, thread_count
from headrace._device import device_of
from headrace.store.disk.access import Direct, DiskAccess
from headrace.store.disk.buffer import PartitionBuffer
from headrace.store.disk.files import Layout, PartitionFiles, Sums
from headrace.store.disk.moves import PartitionMoves
from headrace.store.disk.scan import scan_rows, write_initial
from headrace.store.disk.slots import DeviceSlots, HostSlots, Slots
from headrace.store.disk.use import PartitionedUse
from headrace.store.disk.walk import PartitionOrder, Walk, check_order
from headrace.store.pool import Buffers
from headrace.store.row_table import check_parts
from headrace.store.trained import Initial, TrainedRows


class Partitioned(TrainedRows):
    """Embedding rows and optimizer state on disk, trained through a buffer of `capacity` partitions (Marius, section 4).

    Row v is in partition v // `rows_per_partition`. Rows can be gathered and added to while their partition is resident: `walk` an
    order, and hold what a batch needs. Reader threads fetch the next partitions into free slots, writer threads write back those
    that leave, from the slot itself; the buffer is kept from one walk to the next. Rows are float32 or bfloat16 (stochastic
    rounding), states float32, and the same calls give the bits of `TrainedArray`.

    `checkpoint` makes all changes so far last. Whatever happens after it, even a kill, `open` returns to it: this takes disk space
    for every partition twice.

    >>> import tempfile, torch
    >>> from headrace.pipeline import orders
    >>> from headrace.store import Partitioned
    >>> folder = tempfile.TemporaryDirectory()
    >>> Partitioned.create(folder.name + "/rows", 1000, 8, partitions=4, init=(0.0, 0))
    >>> with Partitioned.open(folder.name + "/rows", capacity=2) as store:
    ...     with store.walk(orders.beta(4, 2)) as walk:
    ...         for step in walk:
    ...             for source, target in step.buckets:
    ...                 with walk.hold((source, target)):
    ...                     ids = torch.tensor([source * store.rows_per_partition])
    ...                     store.add_(ids, torch.ones(1, 8), torch.ones(1, 1))
    ...     store.checkpoint({"epoch": 1})
    ...     store.use().loads, [(begin, rows[0, 0].item()) for begin, rows in store.scan()]
    (7, [(0, 4.0), (250, 4.0), (500, 4.0), (750, 4.0)])
    >>> folder.cleanup()
    """

    def __init__(self, files: PartitionFiles, slots: Slots, disk: DiskAccess, capacity: int, readers: int, writers: int) -> None:
        self.capacity, self.device, shape = capacity, slots.device, files.layout.shape
        self.shape, self.dtype = torch.Size((shape.num_rows, shape.width)), shape.dtype
        self._files, self._disk = files, disk
        self._moves = PartitionMoves(files, slots, disk)
        self._buffer = PartitionBuffer(self._moves, readers=readers, writers=writers)
        self._calls, self._walking, self._lock = files.calls, False, threading.Lock()
        self._end = weakref.finalize(self, self._buffer.close)

    @staticmethod
    def create(
        path: str | os.PathLike[str],
        num_rows: int,
        width: int,
        *,
        partitions: int,
        state: int = 1,
        dtype: torch.dtype = torch.float32,
        init: Initial = (1e-3, 0),
        seed: int = 0,
        align: int = 4096,
        checksums: bool = True,
        direct: Direct = "auto",
        threads: int | None = None,
    ) -> None:
        """Write a new store, piece by piece: `state` floats a row (1 for row-wise Adagrad, `width` for the full one), all zero.

        `init` is (scale, seed) for the normal numbers of `TrainedArray.create`, or a function `init(begin, end)` that returns rows.
        `checksums` are taken as partitions are written and compared whenever one is read. `seed` is that of stochastic
        rounding.
        """
        layout = Layout.of(num_rows, width, state, dtype, partitions, align)
        files = PartitionFiles.create(path, layout, seed=seed, checksums=checksums)
        try:

            def write(partition: int) -> Sums:
                return write_initial(files, partition, init, DiskAccess(direct), threads=threads)

            with ExitStack() as stack:
                each: Callable[..., Iterator[Sums]] = map
                if thread_count(threads) > 2 and not callable(init):  # numbers of one partition are drawn while another is written
                    each = stack.enter_context(ThreadPoolExecutor(2)).map
                for partition, checksums_of in enumerate(each(write, range(partitions))):
                    files.written(partition, checksums_of)
            files.commit(0, None)
        except BaseException:
            files.abandon()
            raise
        finally:
            files.close()

    @staticmethod
    def is_complete(path: str | os.PathLike[str]) -> bool:
        """Whether a store was created at `path`; not where there is none, or its creation was cut off and may be repeated.

        A ValueError if a store was there and its `meta.json` is missing: to create another would remove what is left of it.
        """
        return PartitionFiles.is_complete(path)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        capacity: int,
        device: str | torch.device = "cpu",
        spare: int = 2,
        direct: Direct = "auto",
        readers: int = 1,
        writers: int = 1,
        pool: Buffers | None = None,
        threads: int | None = None,
    ) -> Partitioned:
        """The store as of its last checkpoint, with `capacity` partitions in the memory of `device`.

        `spare` more slots take partitions that are read ahead, and those that are written back: memory is capacity + spare
        partitions. `readers` and `writers` are threads that move one partition each. On the host, gathers take memory from `pool`.
        """
        where, disk = device_of(device), DiskAccess(direct)
        if spare < 0 or readers < 1 or writers < 1:
            raise ValueError(f"spare={spare} must not be negative, readers={readers} and writers={writers} at least 1")
        files = PartitionFiles.open(path)
        try:
            if not 1 <= capacity <= files.layout.partitions:
                raise ValueError(f"capacity must be from 1 to the {files.layout.partitions} partitions, not {capacity}")
            count = min(capacity + spare, files.layout.partitions)
            slots: Slots
            if where.type == "cpu":
                slots = HostSlots(files.layout, count, threads=thread_count(threads), pool=pool)
            else:
                slots = DeviceSlots(files.layout, count, where, transfers=readers + writers + 1)
            return cls(files, slots, disk, capacity, readers, writers)
        except BaseException:
            files.close()
            raise

    @property
    def state_width(self) -> int:
        return self._files.layout.shape.state

    @property
    def disk(self) -> Partitioned:
        """This store: only some of its rows are in memory at a time."""
        return self

    @property
    def partitions(self) -> int:
        return self._files.layout.partitions

    @property
    def rows_per_partition(self) -> int:
        return self._files.layout.shape.rows_per_part

    @property
    def partition_bytes(self) -> int:
        """Bytes of a partition's file and of a slot, padding included."""
        return self._files.layout.file_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all rows and states."""
        return self.num_rows * (self._files.layout.row_bytes + self._files.layout.state_bytes)

    @property
    def direct(self) -> bool:
        """Whether the page cache is passed by; with direct='auto', as far as is known."""
        return self._disk.direct

    @property
    def resident(self) -> tuple[int, ...]:
        """The state of the last step, slot by slot: an order that starts with it (`Order.starting_with`) loads nothing to begin."""
        return self._buffer.state

    @property
    def extra(self) -> dict[str, Any] | bytes | None:
        """The `extra` that the last checkpoint was saved with."""
        return self._files.extra

    def rows_of(self, partition: int) -> range:
        """The ids of a partition's rows."""
        if not 0 <= partition < self.partitions:
            raise IndexError(f"partition {partition} of {self.partitions}")
        return range(*self._files.layout.rows_of(partition))

    def gather(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and states of resident partitions, as float32; IndexError names one that is not.  # [k] -> [k, width], [k, state]"""
        with self._buffer.call() as table:
            if self.device.type == "cpu":
                return table.gather(ids)
            with self._moves.turns:
                return table.gather(ids)

    def add_(self, ids: Tensor, delta_rows: Tensor, delta_state: Tensor) -> None:
        """Add to rows and states of resident partitions; no id twice in a call.  # [k], [k, width], [k, state]"""
        with self._buffer.call(adds=True) as table, self._moves.turns:
            self._moves.touch(table.add(ids, delta_rows, delta_state, seed=self._files.seed, call=self._calls))
            self._calls += 1

    def put_(self, ids: Tensor, rows: Tensor, state: Tensor) -> None:
        """Replace rows and states of resident partitions; no id twice in a call.  # [k], [k, width], [k, state]"""
        ids, shape = as_ids_near(ids, "ids", self.device).to(self.device).long(), self._files.layout.shape
        check_ids(ids, self.num_rows)
        check_parts(shape, ids, rows, state, "rows", "state")
        rows, state = rows.detach().to(self.device, self.dtype), state.detach().to(self.device, torch.float32)
        touched = torch.zeros(self.partitions, dtype=torch.uint8, device=self.device)
        partition = ids // max(shape.rows_per_part, 1)
        with self._buffer.call(adds=True) as table, self._moves.turns:
            table.gather(ids)  # IndexError names a partition that is not resident
            for number in partition.unique().tolist():
                slot, chosen = self._buffer.slot_of(number), (partition == number).nonzero().flatten()
                assert slot is not None
                slot_rows, slot_states = self._moves.slots.parts_of(slot)
                slot_rows[ids[chosen] - number * shape.rows_per_part] = rows[chosen]
                slot_states[ids[chosen] - number * shape.rows_per_part] = state[chosen]
                touched[number] = 1
            self._moves.touch(touched)

    def walk(self, order: PartitionOrder) -> Walk:
        """Take an order's partitions through the buffer. What is resident already is not read again; use it in a `with` block."""
        check_order(order, self.partitions, self.capacity)
        return Walk(self._buffer, order, begin=lambda: self._take("walk"), end=self._give)

    def scan(self, *, rows: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """All rows, front to back: the id of the first, and `rows` of them at most, as float32 on the host.  # int, [n, width]

        Memory is that of one piece (64 MiB of rows by default, and never across two partitions); resident partitions are read from
        their slots, so changes since the last checkpoint are seen. Not during a walk, which would move partitions meanwhile.
        """
        if rows is not None and rows < 1:
            raise ValueError(f"rows must be at least 1, not {rows}")
        self._take("scan")
        try:
            yield from scan_rows(self._moves, self._buffer, rows)
        finally:
            self._give()

    def checkpoint(self, extra: dict[str, Any] | bytes | None = None) -> None:
        """Make all changes so far last, together with `extra` (bytes, or a dict that JSON takes). All of it, or none if it fails.

        Adds wait meanwhile. Batches that have gathered and not yet added are not part of it: let them finish first.
        """
        self._buffer.checkpoint(lambda: self._files.commit(self._calls, extra))

    def use(self) -> PartitionedUse:
        """Bytes, loads and seconds since the store was opened."""
        return self._buffer.use()

    def close(self) -> None:
        """Stop the threads and let go of the directory. Changes since the last checkpoint are lost."""
        self._end()

    def __enter__(self) -> Partitioned:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        held = f"{self.capacity} of {self.partitions} partitions"
        return f"Partitioned({str(self._files.path)!r}, {self.num_rows} x {self.width}, {held})"

    def _take(self, what: str) -> None:
        with self._lock:
            if self._walking:
                raise RuntimeError(f"{what} while a walk or a scan is under way: end it first (leave its `with` block)")
            self._walking = True

    def _give(self) -> None:
        self._walking = False
