"""`Sampler`: what a sampler is, and whether one keeps to it."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import accumulate, repeat
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from headrace import _native
from headrace.sample.sample import Sample
from headrace.sample.started import StartedSample


@runtime_checkable
class Sampler(Protocol):
    """Samples neighborhoods of batches of seeds: a pure function of (seed, epoch, batch), and of the seeds.

    A class that derives from this one defines `sample`, and has `start` and `samples` made of it. Loaders take any
    (`NeighborLoader(data, neighbor_sampler=...)`) and call it from several threads at a time; so it keeps no state between batches,
    and draws from a generator of its own for each (`batch_generator`). `Hops` puts a sample together.

    >>> import headrace as hr
    >>> class FirstNeighbor(hr.sample.Sampler):
    ...     def __init__(self, graph):
    ...         self.graph = graph
    ...
    ...     def sample(self, seeds, epoch=0, batch=0, **_):
    ...         hops = hr.sample.Hops(seeds)
    ...         rows = self.graph.degrees()[hops.frontier].nonzero().flatten()
    ...         hops.add(rows, self.graph.indices[self.graph.indptr[hops.frontier[rows]]])
    ...         return hops.sample()
    >>> graph = hr.Graph.from_edges([5, 6, 7], [0, 0, 2], 8)
    >>> [sample.nodes.tolist() for sample in FirstNeighbor(graph).samples([[0, 1], [2]])]
    [[0, 1, 5], [2, 7]]
    """

    device: torch.device = torch.device("cpu")  # where samples lie

    @abstractmethod
    def sample(
        self,
        seeds: Any,
        epoch: int = 0,
        batch: int = 0,
        *,
        time: Any | None = None,
        edge_ids: bool = False,
        threads: int | None = None,
    ) -> Sample:
        """The sample of `seeds`, ids of nodes, as batch `batch` of epoch `epoch`.

        A loader passes `time`, one per seed, if it was given `input_time`; `edge_ids=True` if `Sample.edge_id` is wanted; and
        `threads`, how many the sampler may use. A sampler that has no use for them takes them as `**_`.
        """
        ...

    def start(
        self,
        seeds: Any,
        epoch: int = 0,
        batch: int = 0,
        *,
        time: Any | None = None,
        edge_ids: bool = False,
        threads: int | None = None,
    ) -> StartedSample:
        """`sample` in two parts, so that others can work meanwhile: `start(...).finish()` is the sample.

        Here `finish` does all the work. A sampler on a GPU launches its kernels now, on the current stream, and lets `finish` wait.
        """
        return StartedSample(lambda: self.sample(seeds, epoch, batch, time=time, edge_ids=edge_ids, threads=threads))

    def samples(
        self,
        batches: Iterable[Any],
        epoch: int = 0,
        *,
        first: int = 0,
        times: Iterable[Any] | None = None,
        edge_ids: bool = False,
        threads: int | None = None,
    ) -> Iterator[Sample]:
        """The samples of many batches of seeds: `sample(batches[i], epoch, first + i)` for each, in turn."""
        for batch, (seeds, time) in enumerate(with_times(batches, times), first):
            yield self.sample(seeds, epoch, batch, time=time, edge_ids=edge_ids, threads=threads)


def check_seed(seed: int) -> None:
    """ValueError unless a Philox key can hold it."""
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be from 0 to 2**64 - 1, not {seed}")


def check_batch(epoch: int, batch: int, *, most: int = 2**64) -> None:
    """ValueError unless these can be counts of epochs, and of at most `most` batches."""
    if not 0 <= epoch < 2**32 or not 0 <= batch < most:
        raise ValueError(f"epoch and batch must be counts, not {epoch} and {batch}")


def with_times(batches: Iterable[Any], times: Iterable[Any] | None) -> Iterable[tuple[Any, Any]]:
    """Each batch of seeds with its times, or with None."""
    return zip(batches, repeat(None)) if times is None else zip(batches, times, strict=True)


def batch_generator(seed: int, epoch: int, batch: int) -> torch.Generator:
    """A generator of torch for the draws of one batch, for samplers of one's own: a function of the three numbers.

    >>> import torch
    >>> from headrace.sample import batch_generator
    >>> a, b = (torch.randint(0, 100, (3,), generator=batch_generator(7, epoch=0, batch=2)) for _ in range(2))
    >>> torch.equal(a, b)
    True
    """
    return torch.Generator().manual_seed(_native.stream_key(seed, epoch, batch, _native.Purpose.sample))


def sampler_of(candidate: Any, name: str) -> Sampler:
    """What was passed as `name`, once it is known to have the methods of a `Sampler`."""
    if isinstance(candidate, type):
        raise TypeError(f"{name} must be a sampler, not the class {candidate.__name__}: pass an instance")
    missing = [method for method in ("sample", "start", "samples") if not callable(getattr(candidate, method, None))]
    missing += [] if isinstance(getattr(candidate, "device", None), torch.device) else ["device"]
    if missing:
        raise TypeError(
            f"{name} must be a headrace.sample.Sampler, but {type(candidate).__name__} has no {', '.join(missing)}: "
            "derive it from Sampler and define sample(seeds, epoch, batch, **options)"
        )
    try:
        inspect.signature(candidate.sample).bind([], 0, 0, time=None, edge_ids=False, threads=1)
    except TypeError as error:
        raise TypeError(
            f"{name} is called as sample(seeds, epoch, batch, time=, edge_ids=, threads=), which {type(candidate).__name__}.sample "
            f"does not take ({error}): what it has no use for it may take as **_"
        ) from None
    sampler: Sampler = candidate
    return sampler


def checked(sample: Any, seeds: Tensor, *, num_nodes: int, name: str) -> Sample:
    """What sampler `name` returned for `seeds`, once it is known to be a sample of a graph of `num_nodes` nodes.

    Kernels follow its ids unasked. Of samples on a GPU only the sizes are looked at: for more, the host would have to wait.
    """
    if not isinstance(sample, Sample):
        raise TypeError(f"{name}.sample must return a headrace.sample.Sample, not {type(sample).__name__}: Hops makes one")

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise ValueError(f"{name}.sample returned a sample {what}")

    nodes, edges = list(accumulate(sample.num_sampled_nodes)), list(accumulate(sample.num_sampled_edges))
    require(len(edges) >= 1 and len(nodes) == len(edges) + 1, "whose num_sampled_nodes is not one longer than num_sampled_edges")
    require(sample.num_seeds == len(seeds), f"of {sample.num_seeds} seeds for a batch of {len(seeds)}")
    for field, dtypes, size in (
        ("nodes", (torch.int32, torch.int64), nodes[-1]),
        ("indptr", (torch.int64,), nodes[-2] + 1),
        ("indices", (torch.int32,), edges[-1]),
    ):
        array = getattr(sample, field)
        kinds = " or ".join(str(dtype) for dtype in dtypes)
        require(array.dtype in dtypes, f"whose {field} are {array.dtype}, not {kinds}")
        require(array.shape == (size,), f"whose {field} have shape {tuple(array.shape)}: by its counts it has {size} of them")
    require(sample.edge_id is None or sample.edge_id.shape == (edges[-1],), "whose edge_id has not one entry per edge")
    if sample.device.type != "cpu":
        return sample
    require(torch.equal(sample.nodes[: len(seeds)].long(), seeds.cpu().long()), "that does not begin with its seeds")
    low, high = _native.id_range(sample.nodes, 1)
    require(low >= 0 and high < num_nodes, f"with nodes {low} to {high}, but the graph has nodes 0 to {num_nodes - 1}")
    require(int(sample.indptr[0]) == 0 and bool((sample.indptr.diff() >= 0).all()), "whose indptr does not rise from 0")
    begin = 0
    for hop, end in enumerate(edges):
        require(int(sample.indptr[nodes[hop]]) == end, f"whose rows up to hop {hop} have not {end} edges, as its counts say")
        low, high = _native.id_range(sample.indices[begin:end], 1)
        require(low >= 0 and high < nodes[hop + 1], f"whose hop {hop} names nodes {low} to {high} of {nodes[hop + 1]}")
        begin = end
    return sample
