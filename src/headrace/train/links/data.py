"""`LinkData`: the edges that link prediction learns from and is asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from headrace.graph import Dataset
from headrace.sample import KnownEdges


@dataclass(frozen=True)
class LinkData:
    """Edges as (head, relation, tail), in three splits; `labeled` where relations mean something."""

    train: Tensor  # [e, 3]
    val: Tensor
    test: Tensor
    num_nodes: int
    num_relations: int
    labeled: bool
    held_out_by: Literal["dataset", "pairs", "time"] = "dataset"  # who says which edges are held out

    @classmethod
    def of(cls, data: Dataset, *, held_out: float = 0.05, seed: int = 0) -> LinkData:
        """The splits of a knowledge graph (`train`, `val` or `valid`, and `test` in the dataset's `extra`), or `held_out` of the
        edges for validation and as many for testing: of its `triples`, where it has no splits, or of a graph's own edges.

        Where edges have times, the latest are held out: those for testing, and before them those for validation; edges of one time
        are in one split. `info["val_time"]` and `info["test_time"]`, the last times of training and validation, part them
        otherwise. Without times an edge and its reverse are in the same split, or half of the answers would be in the training
        set, and the split depends on the two nodes and the seed alone.
        """
        if "train" in data.extra and data.extra["train"].dim() == 2 and data.extra["train"].shape[1] >= 3:
            none = data.extra["train"][:0]
            splits = {**data.extra, "val": data.extra.get("val", data.extra.get("valid", none))}
            train, val, test = parts = [splits.get(name, none)[:, :3].contiguous() for name in ("train", "val", "test")]
            relations = int(data.info.get("num_relations", 0)) or 1 + max(int(p[:, 1].max()) for p in parts if len(p))  # type: ignore[call-overload]
            edges = cls(train, val, test, data.num_nodes, relations, labeled=True)
        elif "triples" in data.extra:
            triples = data.extra["triples"]
            relations = int(data.info.get("num_relations", 0)) or 1 + int(triples[:, 1].max())  # type: ignore[call-overload]
            held, by = _split(triples, data.extra.get("triples_time"), held_out, seed)
            edges = cls(*held, data.num_nodes, relations, labeled=True, held_out_by=by)
        else:
            head, tail = data.graph.edge_index().unbind(0)
            triples = torch.stack([head, torch.zeros_like(head), tail.to(head.dtype)], dim=1)
            cuts: Any = [data.info[name] for name in ("val_time", "test_time") if name in data.info]
            held, by = _split(triples, data.graph.time, held_out, seed, cuts)
            edges = cls(*held, data.num_nodes, 1, labeled=False, held_out_by=by)
        edges._check()
        return edges

    def _check(self) -> None:
        if not len(self.train):
            held = "; all edges have about one time, and the latest are held out" if self.held_out_by == "time" else ""
            raise ValueError(f"there are no edges to learn from: the training split is empty{held}")
        for name in ("train", "val", "test"):
            part: Tensor = getattr(self, name)
            if not len(part):
                continue
            columns = (self.num_nodes, "heads"), (self.num_relations, "relations"), (self.num_nodes, "tails")
            for (count, what), low, high in zip(columns, part.amin(0).tolist(), part.amax(0).tolist(), strict=True):
                if low < 0 or high >= count:
                    raise ValueError(f"the {what} of split {name!r} are from {low} to {high}, but must be from 0 to {count - 1}")

    def known(self, *splits: str, device: torch.device | str = "cpu") -> KnownEdges:
        """The edges of some splits, to look up on `device`; of all three by default."""
        parts = [getattr(self, name) for name in splits or ("train", "val", "test")]
        return KnownEdges(torch.cat(parts).to(device), num_nodes=self.num_nodes, num_relations=self.num_relations)

    def degrees(self) -> Tensor:
        """How many training edges end at each node.  # -> [nodes]"""
        return torch.bincount(self.train[:, ::2].flatten().long(), minlength=self.num_nodes)


def _split(
    triples: Tensor, time: Tensor | None, held_out: float, seed: int, cuts: Sequence[float] = ()
) -> tuple[tuple[Tensor, Tensor, Tensor], Literal["pairs", "time"]]:
    """Training, validation and test edges: the latest are held out, or those of some pairs of nodes. [e, 3], [e]

    `cuts` are the last times of training and of validation, where the dataset says them.
    """
    head, tail = triples[:, 0].long(), triples[:, 2].long()
    low, high = torch.minimum(head, tail), torch.maximum(head, tail)
    share = _mixed(_mixed(low + _mixed(torch.tensor(seed))) + high).double() / 2**63 / 2 + 0.5  # uniform in [0, 1)
    rest = share.argsort()  # held-out edges in a random order, so that the first of them stand for all
    if time is None:
        train = (share >= held_out) & (share < 1 - held_out)
        val, test = rest[: int((share < held_out).sum())], rest[len(rest) - int((share >= 1 - held_out).sum()) :]
        return (triples[train], triples[val], triples[test]), "pairs"
    if len(cuts) == 2:
        is_val, is_test = (time > cuts[0]) & (time <= cuts[1]), time > cuts[1]
        return (triples[time <= cuts[0]], triples[rest[is_val[rest]]], triples[rest[is_test[rest]]]), "time"
    is_test = _latest(time, torch.ones(len(time), dtype=torch.bool), round(held_out * len(time)))
    is_val = _latest(time, ~is_test, round(held_out * len(time)))
    return (triples[~(is_val | is_test)], triples[rest[is_val[rest]]], triples[rest[is_test[rest]]]), "time"


def _latest(time: Tensor, among: Tensor, count: int) -> Tensor:
    """Which are the `count` latest of some edges, and any others of the same time as the first of those.  # -> [e] bool"""
    times = time[among].sort().values
    if not count or len(times) < count:
        return torch.zeros_like(among)
    return among & (time >= times[len(times) - count])


def _mixed(value: Tensor) -> Tensor:
    """SplitMix64: 64 bits in, 64 well-mixed ones out."""
    value = value + _signed(0x9E3779B97F4A7C15)
    value = (value ^ _shifted(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shifted(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shifted(value, 31)


def _shifted(value: Tensor, bits: int) -> Tensor:
    return (value >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts the sign in


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
