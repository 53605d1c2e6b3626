"""Negatives: pairs of nodes that are (most likely) not edges, to learn links against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import as_ids, thread_count
from headrace.sample.sampler import check_batch, check_seed
from headrace.sample.weights import node_weights


class Edges(Protocol):
    """Edges in compressed rows: a `Graph`, or a `Relation` of a `HeteroGraph`."""

    @property
    def indptr(self) -> Tensor: ...

    @property
    def indices(self) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class NegativeSampling:
    """How negatives are drawn. The first four fields are PyG's.

    mode: "binary" draws both ends of every negative, "triplet" only targets, `amount` for every positive's source.
    amount: negatives per positive; a whole number for triplets.
    src_weight, dst_weight: one number per node, by which an end is drawn; uniform without.
    filter: draw a negative that is an edge again: of the graph that is sampled (True), or of the one given.
    rounds: how often one negative is drawn at the most. What is still an edge then is kept, and counted.
    """

    mode: Literal["binary", "triplet"] = "binary"
    amount: float = 1
    src_weight: Any | None = None
    dst_weight: Any | None = None
    filter: bool | Edges = False
    rounds: int = 8

    def __post_init__(self) -> None:
        if self.mode not in ("binary", "triplet"):
            raise ValueError(f"the mode of negative sampling must be 'binary' or 'triplet', not {self.mode!r}")
        if not self.amount > 0 or not math.isfinite(self.amount):
            raise ValueError(f"amount, of negatives per positive, must be positive, not {self.amount}")
        if self.mode == "triplet" and self.amount != int(self.amount):
            raise ValueError(f"amount must be a whole number for triplets, not {self.amount}")
        if not isinstance(self.filter, bool) and not hasattr(self.filter, "indptr"):
            raise TypeError(f"filter must be True, False or a graph whose edges to avoid, not {self.filter!r}")
        if not 1 <= self.rounds < 2**32:
            raise ValueError(f"rounds must be at least 1, not {self.rounds}")

    def count(self, positives: int) -> int:
        """Negatives for so many positives."""
        return math.ceil(positives * self.amount)

    @classmethod
    def of(cls, settings: Any) -> NegativeSampling | None:
        """From what PyG allows: None, a mode, a dictionary of fields, or an object that has them."""
        if settings is None or isinstance(settings, cls):
            return settings
        if isinstance(settings, str):
            return cls(settings)  # type: ignore[arg-type]
        names = [field.name for field in fields(cls)]
        if isinstance(settings, Mapping):
            if unknown := set(settings) - set(names):
                raise ValueError(f"neg_sampling has no {sorted(map(str, unknown))}: it may have {names}")
            values = dict(settings)
        elif hasattr(settings, "mode") and hasattr(settings, "amount"):
            values = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
        else:
            raise TypeError(f"neg_sampling must be 'binary', 'triplet', a dictionary or a NegativeSampling, not {settings!r}")
        values["mode"] = getattr(values.get("mode"), "value", values.get("mode"))  # PyG's enumeration
        return cls(**values)


@dataclass(frozen=True, eq=False)
class Negatives:
    """Drawn pairs; `left` of them are edges all the same, if those were to be avoided."""

    src: Tensor  # int64, [n]
    dst: Tensor  # int64, [n]
    left: int = 0


class NegativeSampler:
    """Draws negatives for batches of positive edges.

    Every draw is Philox of (seed, epoch, batch, slot, round): one block per slot and round, of which two words make the source
    and two the target. So negatives depend on these alone, and a slot that is drawn again changes no other.

    >>> import headrace as hr
    >>> sampler = hr.sample.NegativeSampler("triplet", num_src=100, num_dst=50, seed=1)
    >>> drawn = sampler.sample([3, 14, 15], epoch=0, batch=2)
    >>> drawn.src.tolist(), drawn.dst.shape
    ([3, 14, 15], torch.Size([3]))
    """

    def __init__(
        self, sampling: Any, *, num_src: int, num_dst: int, edges: Edges | None = None, seed: int = 0, threads: int | None = None
    ) -> None:
        settings = NegativeSampling.of(sampling)
        if settings is None:
            raise ValueError("a sampler of negatives needs to know how: pass 'binary', 'triplet' or a NegativeSampling")
        check_seed(seed)
        self.sampling, self.num_src, self.num_dst, self.seed = settings, num_src, num_dst, seed
        self.threads = thread_count(threads)
        self._edges = None if settings.filter is False else edges if settings.filter is True else settings.filter
        if settings.filter is not False and self._edges is None:
            raise ValueError("filter=True avoids the edges of the graph that is sampled, but there is none: pass edges")
        if self._edges is not None and self._edges.indptr.numel() - 1 > num_dst:
            raise ValueError(f"the edges to avoid have {self._edges.indptr.numel() - 1} targets, but there are {num_dst} nodes")
        self._src_cumulative = _cumulative(settings.src_weight, num_src, "src_weight") if settings.mode == "binary" else None
        self._dst_cumulative = _cumulative(settings.dst_weight, num_dst, "dst_weight")

    def sample(self, src: Any, epoch: int = 0, batch: int = 0, *, threads: int | None = None) -> Negatives:
        """Negatives for positives with sources `src`, as batch `batch` of epoch `epoch`.

        Binary: `ceil(amount * len(src))` pairs. Triplet: `amount` pairs for every source in turn, each with that source.
        """
        check_batch(epoch, batch)
        positives = as_ids(src, "src", dtype=torch.int64)
        sources = positives.repeat_interleave(int(self.sampling.amount)) if self.sampling.mode == "triplet" else None
        edges = self._edges
        drawn, dst, left = _native.negatives(
            self.sampling.count(len(positives)),
            seed=self.seed,
            epoch=epoch,
            batch=batch,
            num_src=self.num_src,
            num_dst=self.num_dst,
            src=sources,
            src_cumulative=self._src_cumulative,
            dst_cumulative=self._dst_cumulative,
            indptr=None if edges is None else edges.indptr,
            indices=None if edges is None else edges.indices,
            rounds=self.sampling.rounds,
            threads=self.threads if threads is None else thread_count(threads),
        )
        return Negatives(torch.from_numpy(drawn) if sources is None else sources, torch.from_numpy(dst), left)


def _cumulative(weight: Any | None, nodes: int, name: str) -> Tensor | None:
    """Running sums of weights, checked."""
    if weight is None:
        return None
    sums = node_weights(weight, nodes, name).cumsum(0)
    if nodes and not 0 < float(sums[-1]) < math.inf:
        raise ValueError(f"{name} must have a positive, finite sum, not {float(sums[-1])}")
    return sums
