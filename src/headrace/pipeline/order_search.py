"""Search for orders with fewer loads than BETA: `python -m headrace.pipeline.order_search 16 8 --seconds 60 --seed 0`.

A beam of partial orders grows by one swap at a time. Each is ranked by how many pairs are still missing, and by how they lie:
pairs left among few partitions come together with fewer loads than as many spread over all, so the mean, over missing pairs, of
what their partitions miss counts too, with a weight that every seed draws anew. A seed begins with nothing, or with the first swaps
of the best order so far. At first that may be an order of p / k partitions, c / k of them resident, each of which comes in k parts:
twice the 38 loads of (16, 4) make 76 of (32, 8), where BETA has 78.

What is found depends only on (p, c), so it is kept in `orders.json` and never searched for again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import numpy as np

from headrace.pipeline.orders import Swap, best_swaps, beta_swaps, fewest_swaps, from_swaps, replay, searched

_TABLE = Path(__file__).with_name("orders.json")
_MORE = 3  # times as many as the beam is wide are looked at for two that came to the same
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Beam:
    """Partial orders side by side: who is resident, which pairs are missing, and how each came to be."""

    def __init__(self, partitions: int, capacity: int, rng: np.random.Generator) -> None:
        self.partitions, self.capacity, self.rng = partitions, capacity, rng
        self.inside = np.zeros((1, partitions), bool)
        self.inside[0, :capacity] = True
        self.missing = ~np.eye(partitions, dtype=bool)[None]  # [w, p, p]
        self.missing[0, :capacity, :capacity] = False
        self.steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # of every swap: grown from which, leaves, enters
        # Sums of random words tell orders apart that came to the same by other ways.
        pairs = rng.integers(0, 2**63, (partitions, partitions), dtype=np.uint64)
        self._pair_words, self._inside_words = pairs ^ pairs.T, rng.integers(0, 2**63, partitions, dtype=np.uint64)
        self._words = np.zeros((2, 1), np.uint64)

    def swap(self, beam: np.ndarray, leaves: np.ndarray, enters: np.ndarray, width: int) -> None:
        """Go on with these, the first `width` that differ.  # [k], [k], [k]"""
        row = np.arange(len(beam))
        new = self.missing[beam, enters] & self.inside[beam]  # [k, p]
        new[row, leaves] = False
        words = self._words[:, beam]
        words[0] ^= np.bitwise_xor.reduce(np.where(new, self._pair_words[enters], np.uint64(0)), axis=1)
        words[1] ^= self._inside_words[leaves] ^ self._inside_words[enters]
        _, kept = np.unique(words[0] * _MIX ^ words[1], return_index=True)
        kept = np.sort(kept)[:width]
        beam, leaves, enters, new, row = beam[kept], leaves[kept], enters[kept], new[kept], row[: len(kept)]
        self._words = words[:, kept]
        self.inside, self.missing = self.inside[beam], self.missing[beam]
        self.inside[row, leaves], self.inside[row, enters] = False, True
        self.missing[row, enters] &= ~new
        self.missing[row, :, enters] &= ~new
        self.steps.append((beam, leaves, enters))

    def ranked(self, most: int, weight: float, noise: float) -> np.ndarray:  # [w, p, p]
        """The score of every swap (leaves, enters); -inf where there is none, or more than `most` pairs are missing after it."""
        met_now = self.missing & self.inside[:, :, None]  # resident i and any e
        lacks = self.missing.sum(2, dtype=np.float32)
        gain = met_now.sum(1, dtype=np.float32)[:, None, :] - met_now
        after = lacks.sum(1)[:, None, None] / 2 - gain
        # Of the squares of what partitions lack, e has gain fewer, and each that it meets one fewer.
        met = np.matmul(lacks[:, None, :], met_now.astype(np.float32)) - met_now * lacks[:, :, None]
        squares = (lacks**2).sum(1)[:, None, None] + gain * (gain - 2 * lacks[:, None, :]) - 2 * met + gain
        score: np.ndarray = weight * squares / np.maximum(2 * after, 1) - after
        score += noise * self.rng.random(score.shape, dtype=np.float32)
        score[~(self.inside[:, :, None] & ~self.inside[:, None, :] & (gain > 0) & (after <= most))] = -np.inf
        return score

    def swaps_of(self, order: int) -> list[Swap]:
        """How one of them came to be."""
        swaps: list[Swap] = []
        for beam, leaves, enters in reversed(self.steps):
            swaps.append((int(leaves[order]), int(enters[order])))
            order = int(beam[order])
        return swaps[::-1]


def search(
    partitions: int, capacity: int, *, width: int, seed: int, below: int, until: float, begin: Sequence[Swap] = ()
) -> list[Swap] | None:
    """Swaps of an order with fewer than `below`, the first of them `begin`; or None if this beam finds none in time."""
    rng = np.random.default_rng(seed)
    weight, noise = rng.uniform(0, 1), rng.choice([0.0, 0.1, 0.5, 1.0])
    beam = Beam(partitions, capacity, rng)
    for leaves, enters in begin:
        beam.swap(np.array([0]), np.array([leaves]), np.array([enters]), 1)
    for depth in range(len(begin) + 1, below):
        if monotonic() > until:
            return None
        score = beam.ranked((below - 1 - depth) * (capacity - 1), weight, noise)
        flat = score.ravel()
        count = min(int((flat > -np.inf).sum()), _MORE * width)
        if not count:
            return None
        top = np.argpartition(-flat, count - 1)[:count]
        best = np.unravel_index(top[np.argsort(-flat[top], kind="stable")], score.shape)
        beam.swap(best[0], best[1], best[2], width)
        done = np.flatnonzero(~beam.missing.any((1, 2)))
        if len(done):
            return beam.swaps_of(int(done[0]))
    return None


def in_parts(swaps: Sequence[Swap], parts: int) -> list[Swap]:
    """The order of as many times more partitions, and as many times more resident, that moves the parts of each together.

    >>> in_parts([(0, 2)], 2)
    [(0, 4), (1, 5)]
    """
    return [(leaves * parts + part, enters * parts + part) for leaves, enters in swaps for part in range(parts)]


def improve(partitions: int, capacity: int, *, seconds: float, seed: int = 0, width: int = 300) -> list[Swap] | None:
    """The shortest order found in so many seconds, from the table's own or none; None if that beats neither it nor BETA."""
    until, limit = monotonic() + seconds, fewest_swaps(partitions, capacity)
    known = searched(partitions, capacity)
    fewest, best = best_swaps(partitions, capacity), None
    for parts in range(2, capacity // 2 + 1):
        if partitions % parts == 0 and capacity % parts == 0 and (coarse := searched(partitions // parts, capacity // parts)):
            whole = in_parts(coarse, parts)
            if len(whole) < fewest:
                known = best = whole
                fewest = len(whole)
    while fewest > limit and monotonic() < until:
        begin: Sequence[Swap] = ()
        if known and seed % 2:
            begin = known[: int(np.random.default_rng([seed, 1]).integers(0, len(known)))]
        better = search(partitions, capacity, width=width, seed=seed, below=fewest, until=until, begin=begin)
        if better is not None:
            print(f"seed {seed}: {len(better)} loads, {'anew' if not begin else f'from {len(begin)} of {fewest}'}", flush=True)
            fewest = replay(from_swaps(partitions, capacity, better))
            known = best = better
        seed += 1
    return best


def main() -> None:
    """Search with one seed after the other until the bound or the time is reached, and keep what is better."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("partitions", type=int)
    asked.add_argument("capacity", type=int)
    asked.add_argument("--seconds", type=float, default=60.0)
    asked.add_argument("--seed", type=int, default=0, help="the first; each beam has the next")
    asked.add_argument("--width", type=int, default=300, help="of beams")
    asked.add_argument("--table", type=Path, default=_TABLE, help="where to keep what is found")
    arguments = asked.parse_args()
    p, c = arguments.partitions, arguments.capacity
    swaps = improve(p, c, seconds=arguments.seconds, seed=arguments.seed, width=arguments.width)
    if swaps is not None:
        table = json.loads(arguments.table.read_text()) if arguments.table.exists() else {}
        if len(swaps) < len(table.get(f"{p},{c}", range(beta_swaps(p, c)))):
            table[f"{p},{c}"] = swaps
            lines = (f'"{size}": {json.dumps(kept, separators=(",", ":"))}' for size, kept in sorted(table.items(), key=_size))
            arguments.table.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    fewest = len(swaps) if swaps is not None else best_swaps(p, c)
    print(f"p={p} c={c}: {fewest} loads; BETA {beta_swaps(p, c)}, at least {fewest_swaps(p, c)}")


def _size(item: tuple[str, object]) -> list[int]:
    return [int(number) for number in item[0].split(",")]


if __name__ == "__main__":
    main()
