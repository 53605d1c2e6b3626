"""Random graphs with planted communities: labels can be learnt, degrees follow a power law, ids carry no locality."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_count
from headrace._memory import require_memory
from headrace.graph.changing import snapshots
from headrace.graph.dataset import Dataset
from headrace.graph.events import events
from headrace.graph.graph import Graph
from headrace.graph.knowledge import MOST_EXPONENT, knowledge

__all__ = ["PRESETS", "Preset", "community", "events", "knowledge", "preset", "snapshots"]

_LABELS, _CENTERS, _IDS, _SPLIT = range(4)  # which random words are for what; the kernels use streams of their own


@dataclass(frozen=True)
class Preset:
    """The published size of a dataset, and how its stand-in is made."""

    nodes: int
    edges: int
    classes: int
    features: int
    splits: tuple[int, int, int]
    directed: bool = False


PRESETS = {
    "products": Preset(2_449_029, 123_718_280, 47, 100, (196_615, 39_323, 2_213_091)),
    "reddit": Preset(232_965, 114_615_892, 41, 602, (153_431, 23_831, 55_703)),
    "papers100M": Preset(111_059_956, 1_615_685_872, 172, 128, (1_207_179, 125_265, 214_338), directed=True),
}


def preset(name: str, *, scale: float = 1.0, seed: int = 0, threads: int | None = None) -> Dataset:
    """A stand-in for a public dataset, of its size: `products`, `reddit` or `papers100M`.

    `scale` multiplies nodes, edges and splits; features, classes and the mean degree stay.
    """
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}: choose one of {', '.join(PRESETS)}")
    if not 0 < scale <= 1:
        raise ValueError(f"scale must be above 0 and at most 1, not {scale}")
    p = PRESETS[name]
    nodes = max(int(p.nodes * scale), 2 * p.classes)
    edges = int(p.edges * scale)
    edges = min(edges if p.directed else edges // 2 * 2, nodes * (nodes - 1) // 4 * 2)
    data = community(
        nodes=nodes,
        edges=edges,
        classes=p.classes,
        features=p.features,
        directed=p.directed,
        splits=(p.splits[0] / p.nodes, p.splits[1] / p.nodes, p.splits[2] / p.nodes),
        seed=seed,
        threads=threads,
    )
    data.info |= {"name": name, "scale": scale}
    return data


def community(
    nodes: int,
    edges: int,
    classes: int = 10,
    features: int = 64,
    homophily: float = 0.8,
    exponent: float = 2.8,
    seed: int = 0,
    *,
    directed: bool = False,
    block: int | None = None,
    nested: float = 0.55,
    signal: float = 0.3,
    noise: float = 0.05,
    max_degree: int | None = None,
    splits: tuple[float, float, float] = (0.1, 0.1, 0.8),
    threads: int | None = None,
) -> Dataset:
    """A graph of exactly `nodes` nodes and `edges` directed edges, with classes that its edges and features tell of.

    `homophily` is the share of edges that stay within a class, and of those the share `nested` stays within one of the
    class's blocks of `block` nodes (so that orders and partitions have something to find). Degrees follow a power law with
    `exponent`, the expected ones cut at `max_degree`. Features are a class center, `signal` long per dimension, plus
    standard normal noise. A share `noise` of the labels is replaced by random ones: no model can be better than
    `info["best_accuracy"]`.
    Unless `directed`, every edge stands in both directions. There are no self loops and no repeated edges.

    The result is a function of the arguments: threads change nothing.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=1000, edges=10000, classes=4, features=16, seed=1)
    >>> data.num_nodes, data.num_edges, data.num_classes
    (1000, 10000, 4)
    """
    _check(
        nodes,
        edges,
        classes,
        features,
        homophily,
        exponent,
        nested,
        noise,
        splits,
        seed,
        max_degree,
        block,
        directed=directed,
        signal=signal,
    )
    _require_room(nodes, edges, features)
    workers = thread_count(threads)
    mean_degree = edges / nodes
    if block is None:
        block = max(500, int(16 * mean_degree))
    if max_degree is None:
        max_degree = max(int(350 * mean_degree), 16)
    max_degree = min(max_degree, max(nodes // 4, 1))

    # Everything below is in positions, where classes are ranges; `ids` scatters positions over node ids at the end.
    class_ends = _class_ends(nodes, classes)
    class_of = np.repeat(np.arange(classes, dtype=np.int32), np.diff(class_ends))
    weights = _native.power_law_weights(seed, exponent, max_degree / max(mean_degree, 1e-9), nodes, workers)
    cumulative = np.concatenate([[0.0], np.cumsum(weights)])
    ids = _permutation(nodes, seed, workers)

    wide = nodes > np.iinfo(np.int32).max
    wanted = edges if directed else edges // 2
    low: NDArray[np.integer] | None = None
    high: NDArray[np.integer] | None = None
    indptr, indices = np.zeros(nodes + 1, np.int64), np.zeros(0, np.int32)
    for attempt in range(64):
        missing = wanted - len(indices)
        if missing <= 0:
            break
        new_low, new_high = _native.candidate_edges(
            cumulative,
            class_ends,
            class_of,
            block=block,
            within_block=homophily * nested,
            within_class=homophily * (1 - nested),
            mean_degree=mean_degree,
            seed=seed,
            round=attempt,
            wanted=missing * (1.06 if attempt == 0 else 1.5) + 16,
            undirected=not directed,
            wide=wide,
            threads=workers,
        )
        low = new_low if low is None else np.concatenate([low, new_low])
        high = new_high if high is None else np.concatenate([high, new_high])
        indptr, indices, _ = _native.build_csr(
            high,
            low,
            nodes,
            wide_index=wide,
            undirected=False,
            deduplicate=True,
            self_loops="keep",
            positions=False,
            threads=workers,
        )
    if len(indices) < wanted:
        raise ValueError(
            f"{edges} edges do not fit among {nodes} nodes with these communities: "
            "use fewer edges, a lower homophily or a larger block"
        )
    del low, high
    src, dst = _native.thin_edges(indptr, indices, wanted, ids, workers)
    del indptr, indices
    graph = Graph.from_edges(src, dst, nodes, undirected=not directed, threads=workers)
    del src, dst

    true_class = np.empty(nodes, np.int64)
    true_class[ids] = class_of
    y = _noisy_labels(true_class, classes, noise, seed, workers)
    x = _features(true_class, classes, features, signal, seed, workers) if features else None
    return Dataset(
        graph,
        x=x,
        y=torch.from_numpy(y),
        splits=_splits(nodes, splits, seed, workers),
        info={
            "name": "community",
            "num_classes": classes,
            "seed": seed,
            "homophily": homophily,
            "exponent": exponent,
            "directed": directed,
            "best_accuracy": 1 - noise * (classes - 1) / classes,
        },
    )


_NODE_BYTES, _EDGE_BYTES = 64, 16  # of arrays that are held together, at the least


def _require_room(nodes: int, edges: int, features: int) -> None:
    needed = nodes * (_NODE_BYTES + 4 * features) + edges * _EDGE_BYTES
    require_memory(needed, f"a graph of {nodes} nodes, {edges} edges and {features} features", "generate a smaller one")


def _check(
    nodes: int,
    edges: int,
    classes: int,
    features: int,
    homophily: float,
    exponent: float,
    nested: float,
    noise: float,
    splits: tuple[float, float, float],
    seed: int,
    max_degree: int | None,
    block: int | None,
    *,
    directed: bool,
    signal: float,
) -> None:
    if nodes < 2:
        raise ValueError(f"nodes must be at least 2, not {nodes}")
    if not 1 <= classes <= nodes:
        raise ValueError(f"classes must be from 1 to the number of nodes, not {classes}")
    if features < 0:
        raise ValueError(f"features must not be negative, got {features}")
    if edges < 0 or edges > nodes * (nodes - 1) // 2:
        raise ValueError(f"edges must be from 0 to half of all pairs ({nodes * (nodes - 1) // 2}), not {edges}")
    if not directed and edges % 2:
        raise ValueError(f"edges counts both directions of an undirected graph, so it must be even, not {edges}")
    for name, share in (("homophily", homophily), ("nested", nested), ("noise", noise)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} must be from 0 to 1, not {share}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be from 0 to 2**64 - 1, not {seed}")
    if max_degree is not None and max_degree < 1:
        raise ValueError(f"max_degree must be at least 1, not {max_degree}")
    if block is not None and block < 1:
        raise ValueError(f"block must be positive, not {block}")
    if not 2 < exponent <= MOST_EXPONENT:
        raise ValueError(f"exponent must be above 2, or the mean degree is not finite, and at most {MOST_EXPONENT}; got {exponent}")
    if not math.isfinite(signal):
        raise ValueError(f"signal must be a finite number, not {signal}")
    if len(splits) != 3 or not min(splits) >= 0 or not sum(splits) <= 1 + 1e-9:
        raise ValueError(f"splits must be three shares (train, val, test) that add up to at most 1, not {splits}")


def _class_ends(nodes: int, classes: int) -> NDArray[np.int64]:
    """Where each class begins: sizes fall off like 1 / sqrt(rank), every class has a node."""
    share = 1 / np.sqrt(np.arange(1, classes + 1))
    sizes = 1 + np.floor((nodes - classes) * share / share.sum()).astype(np.int64)
    sizes[0] += nodes - sizes.sum()
    return np.concatenate([[0], np.cumsum(sizes)])


def _words(what: int, count: int, seed: int, threads: int) -> NDArray[np.uint64]:
    return _native.random_words(seed, what, _native.Purpose.community, count, threads)


def _permutation(count: int, seed: int, threads: int) -> NDArray[np.int64]:
    return np.argsort(_words(_IDS, count, seed, threads), kind="stable")


def _noisy_labels(true_class: NDArray[np.int64], classes: int, noise: float, seed: int, threads: int) -> NDArray[np.int64]:
    words = _words(_LABELS, len(true_class), seed, threads)
    flipped = (words >> np.uint64(32)) < np.uint64(int(noise * 2**32))
    drawn = ((words & np.uint64(0xFFFFFFFF)) * np.uint64(classes) >> np.uint64(32)).astype(np.int64)
    return np.where(flipped, drawn, true_class)


def _features(true_class: NDArray[np.int64], classes: int, width: int, signal: float, seed: int, threads: int) -> Tensor:
    uniform = (_words(_CENTERS, classes * width, seed, threads) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    center = (signal * np.sqrt(12) * (uniform - 0.5)).astype(np.float32).reshape(classes, width)
    out = torch.empty(len(true_class), width)
    _native.noisy_rows(seed, center, true_class, out, threads)
    return out


def _splits(nodes: int, shares: tuple[float, float, float], seed: int, threads: int) -> dict[str, Tensor]:
    order = np.argsort(_words(_SPLIT, nodes, seed, threads), kind="stable")
    ends = [min(round(sum(shares[:i]) * nodes), nodes) for i in range(4)]
    return {name: torch.from_numpy(np.sort(order[ends[i] : ends[i + 1]])) for i, name in enumerate(("train", "val", "test"))}
