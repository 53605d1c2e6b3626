"""`Loader`: what the loaders share, from threads and staleness to epochs and where their time went."""

from __future__ import annotations

import itertools
import operator
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import RandomSampler, SequentialSampler

from headrace._arrays import as_ids, thread_count
from headrace._device import device_of
from headrace.loader.seeds import Seeds
from headrace.loader.shard import Shard
from headrace.pipeline import Fenced, OnStream, Pipeline, Stage, StageTimes, Trace
from headrace.store import BufferPool, PoolUse, kept_memory


class Loader(ABC):
    """Batches made ahead of their consumer by threads, in an order that (seed, epoch) decides.

    A subclass deals its `seeds` into batches, makes the item of one (`_start`, called from many threads) and turns it into what
    the consumer gets (`_finish`). `finish_ahead` says whether the second is done ahead too.

    It has the attributes of torch's `DataLoader` that others read: `dataset` is the range of positions of the inputs.
    """

    seeds: Seeds

    def __init__(
        self,
        *,
        transform: Callable[[Any], Any] | None,
        transform_sampler_output: Callable[[Any], Any] | None,
        threads: int | None,
        num_workers: int,
        staleness: int | None,
        prefetch_factor: int | None,
        ahead: Literal["sample", "rows"],
        pin_memory: bool,
        trace: Trace | None,
        device: str | torch.device | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
    ) -> None:
        if ahead not in ("sample", "rows"):
            raise ValueError(f"ahead must be 'sample' or 'rows', not {ahead!r}")
        self.threads = thread_count(threads if threads is not None else num_workers or None)
        ahead_at_most = staleness if staleness is not None else prefetch_factor or 2
        try:
            self.staleness = operator.index(ahead_at_most)
        except TypeError:
            raise TypeError(f"staleness must be a whole number, not {ahead_at_most!r}") from None
        if self.staleness < 0:
            raise ValueError(f"staleness must be 0 or more, not {self.staleness}")
        self.transform, self.transform_sampler_output, self.ahead = transform, transform_sampler_output, ahead
        self.trace = trace
        self.num_workers, self.prefetch_factor, self.worker_init_fn = num_workers, prefetch_factor, worker_init_fn
        self.device = gpu_of(device)
        self.pin_memory = pin_memory and torch.cuda.is_available() and self.device is None
        self.epoch = 0
        self.finish_ahead = ahead == "rows"
        self.peak = 0  # most batches that were under way at a time
        self._first = 0  # batch that the next epoch begins with, counted over all ranks
        self._times: list[StageTimes] = []
        self._streams: list[torch.cuda.Stream] = []
        self.sample_threads = self.threads  # batches that may be sampled at a time; 0: a GPU samples, and threads would only wait

    def _make_pool(self, nbytes: int) -> None:
        """Keep the buffers of dead batches, up to a fifth of the data's `nbytes`."""
        self.pool = BufferPool(limit=max(nbytes // 5, 64 << 20))

    def __len__(self) -> int:
        """Batches of an epoch; where they are dealt to ranks, those of this one."""
        return len(self.seeds)

    @property
    def num_batches(self) -> int:
        """Batches of an epoch, over all ranks."""
        return self.seeds.num_batches

    @property
    def dataset(self) -> range:
        """The positions of the inputs, which `sampler` and `collate_fn` speak of."""
        return range(len(self.seeds.nodes))

    @property
    def batch_size(self) -> int | None:
        """Inputs of a batch; None where `batch_sampler` decides."""
        return None if self.batch_sampler is not None else self.seeds.batch_size

    @property
    def drop_last(self) -> bool:
        return self.seeds.drop_last

    @property
    def sampler(self) -> Any:
        """What gives the order of inputs. (Neighbors are drawn by `neighbor_sampler`.)

        Without one of the user's own, torch's `SequentialSampler` or `RandomSampler` says to those who look which of the two it is;
        the order itself is decided by (seed, epoch).
        """
        if self.seeds.order is not None:
            return self.seeds.order.sampler
        return RandomSampler(self.dataset) if self.seeds.shuffle and len(self.dataset) else SequentialSampler(self.dataset)

    @property
    def batch_sampler(self) -> Any:
        """The object that gives the positions of each batch, or None."""
        return None if self.seeds.order is None else self.seeds.order.batch_sampler

    @property
    def shard(self) -> Shard:
        """How batches are dealt to ranks: `shard.rounds(num_batches)` is how often each rank has its turn."""
        return self.seeds.shard

    def __iter__(self) -> Iterator[Any]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        first, self._first = self._first, 0
        pipeline = Pipeline(self.seeds.batches(epoch, first), self._stages(epoch), staleness=self.staleness, trace=self.trace)
        self._times = pipeline.times
        try:
            with kept_memory() if self.keeps_memory else nullcontext():
                for batch in pipeline:
                    if isinstance(batch, Fenced):
                        batch = batch.receive(tensors_in(batch.item))
                    elif not self.finish_ahead:
                        batch = self._finish(batch)
                    yield batch
                    del batch
        finally:
            self.peak = max(self.peak, pipeline.peak)

    def _stages(self, epoch: int) -> list[Stage]:
        # Batches are spread over the threads, one thread each: nothing is shared, nothing waits. Alone, a batch has them all.
        inner, width = (1, max(min(self.sample_threads, self.staleness), 1)) if self.staleness > 0 else (self.threads, 1)

        def in_thread(job: tuple[int, Tensor]) -> Any:
            return self._sample(job, epoch, inner)

        sample: Callable[[Any], Any] = in_thread
        if self.worker_init_fn is not None and self.staleness > 0:
            sample = _first_in_thread(self.worker_init_fn, sample)
        if self.device is None:
            stages = [Stage("sample", sample, threads=width)]
            return [*stages, Stage("rows", self._finish)] if self.finish_ahead else stages
        if not self._streams:  # kept: an epoch starts at once
            self._streams = [torch.cuda.Stream(self.device, priority=-1) for _ in range(2)]
        sampling, gathering = self._streams
        if self.sample_threads:
            return [Stage("sample", OnStream(sample, sampling), threads=width), Stage("rows", OnStream(self._finish, gathering))]
        start = OnStream(lambda job: self._start(job, epoch, inner), sampling)
        return [
            Stage("sample", start, threads=0),
            Stage("rows", OnStream(lambda begun: self._finish(begun()), gathering), threads=0),
        ]

    def resume(self, epoch: int, batch: int = 0) -> None:
        """Let the next iteration be epoch `epoch`, from batch `batch` on: the batches are those that an unbroken run has there.

        `batch` is the index in the list of all ranks, the same number on each of them. After a whole step (`Shard`) the number of
        ranks may be another than before.
        """
        most = self.shard.total(self.num_batches)
        if epoch < 0 or not 0 <= batch <= most:
            raise ValueError(f"epoch must not be negative and batch be from 0 to {most}, not {epoch} and {batch}")
        self.epoch, self._first = epoch, batch

    def __call__(self, index: Any, *, epoch: int = 0, batch: int = 0) -> Any:
        """One batch: the inputs at positions `index`, drawn as batch `batch` of `epoch`."""
        positions, count = as_ids(index, "index", dtype=torch.int64), len(self.seeds.nodes)
        if len(positions) and not -count <= int(positions.min()) <= int(positions.max()) < count:
            raise IndexError(f"index must name positions among the {count} {self.inputs}")
        return self._finish(self._sample((batch, positions), epoch, self.threads))

    def collate_fn(self, index: Any) -> Any:
        """The batch of the inputs at positions `index`, as torch's `DataLoader` calls it for a batch of `dataset`.

        Nobody says which batch this is, so draws are a function of (seed, `epoch`, the positions): set `epoch` before each.
        """
        positions = as_ids(index, "index", dtype=torch.int64)
        return self(positions, epoch=self.epoch, batch=zlib.crc32(positions.numpy().tobytes()))

    inputs = "input nodes"  # what the positions count
    keeps_memory = False  # whether, while batches are read, freed memory stays with the process for the tensors of the next one

    @property
    def stage_times(self) -> list[StageTimes]:
        """Where the last epoch's time went, stage by stage; the consumer comes last."""
        return self._times

    def memory(self) -> PoolUse:
        """Bytes that the loader holds in buffers for batches, now and at the peak."""
        return self.pool.use()

    def _sample(self, job: tuple[int, Tensor], epoch: int, threads: int) -> Any:
        return self._start(job, epoch, threads)()

    @abstractmethod
    def _start(self, job: tuple[int, Tensor], epoch: int, threads: int) -> Callable[[], Any]:
        """Begin a batch, and return a function that finishes it: on a GPU, launch kernels now and wait for sizes then."""

    @abstractmethod
    def _finish(self, item: Any) -> Any:
        """Turn an item into what the consumer gets."""

    def _handed_over(self, result: Any) -> Any:
        """`result` as the consumer gets it: transformed, and pinned if asked for."""
        if self.transform is not None:
            result = self.transform(result)
        if self.pin_memory and hasattr(result, "pin_memory"):
            result = result.pin_memory()
        return result


def _first_in_thread(begin: Callable[[int], Any], work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`work`, before whose first call in a thread `begin` is called with the thread's number."""
    seen, numbers = threading.local(), itertools.count()

    def begun(item: Any) -> Any:
        if not hasattr(seen, "number"):
            seen.number = next(numbers)
            begin(seen.number)
        return work(item)

    return begun


def gpu_of(device: str | torch.device | None) -> torch.device | None:
    """The GPU that batches are made for, or None for the CPU."""
    chosen = device_of("cpu" if device is None else device)
    return chosen if chosen.type == "cuda" else None


def tensors_in(batch: Any) -> list[Tensor]:
    """The tensors that a batch holds: one of ours, of PyG, or whatever a transform returned."""
    if isinstance(batch, Tensor):
        return [batch]
    if callable(getattr(batch, "tensors", None)):
        held: list[Tensor] = batch.tensors()
        return held
    if hasattr(batch, "edge_index"):
        return [value for _, value in batch if isinstance(value, Tensor)]
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else None
    if parts is not None:
        return [tensor for part in parts for tensor in tensors_in(part)]
    return [value for value in getattr(batch, "__dict__", {}).values() if isinstance(value, Tensor)]
