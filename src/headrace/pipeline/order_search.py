"""Search for orders with fewer loads than BETA: `python -m headrace.pipeline.order_search 16 8 --seconds 60`.

A beam of partial orders grows by one swap at a time. They are ranked by a lower bound on the loads still needed: a partition that
is not resident and lacks r others must come back at least ceil(r / (c - 1)) times, and each load brings c - 1 new pairs at most.
What is found depends only on (p, c), so it is kept in `orders.json` and never searched for again.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from time import monotonic

from headrace.pipeline.orders import Swap, best, beta_swaps, fewest_swaps, from_swaps, replay

_TABLE = Path(__file__).with_name("orders.json")


def search(partitions: int, capacity: int, *, width: int, seed: int, below: int, until: float) -> list[Swap] | None:
    """Swaps of an order with fewer than `below`, or None if this beam finds none in time."""
    drawn, everything = random.Random(seed), (1 << partitions) - 1
    first = (1 << capacity) - 1
    together = tuple(first if i < capacity else 1 << i for i in range(partitions))
    beam: list[tuple[int, tuple[int, ...], tuple[Swap, ...]]] = [(first, together, ())]
    for depth in range(1, below):
        grown: dict[tuple[int, tuple[int, ...]], tuple[int, int, float, tuple[Swap, ...]]] = {}
        for resident, seen, swaps in beam:
            if monotonic() > until:
                return None
            inside = [i for i in range(partitions) if resident >> i & 1]
            for leaves in inside:
                kept = resident & ~(1 << leaves)
                for enters in range(partitions):
                    new = kept & ~seen[enters]
                    if resident >> enters & 1 or not new:
                        continue
                    now = list(seen)
                    now[enters] |= new
                    for i in inside:
                        if new >> i & 1:
                            now[i] |= 1 << enters
                    after, known = kept | 1 << enters, tuple(now)
                    if (after, known) not in grown:
                        need = _needed(after, known, everything, capacity)
                        if depth + need < below:
                            missing = sum((everything & ~s).bit_count() for s in known)
                            grown[after, known] = (need, missing, drawn.random(), (*swaps, (leaves, enters)))
        if not grown:
            return None
        ranked = sorted(grown.items(), key=lambda item: item[1])
        if ranked[0][1][1] == 0:
            return list(ranked[0][1][3])
        beam = [(resident, seen, rank[3]) for (resident, seen), rank in ranked[:width]]
    return None


def _needed(resident: int, seen: tuple[int, ...], everything: int, capacity: int) -> int:
    """A lower bound on further loads."""
    pairs = returns = 0
    for i, known in enumerate(seen):
        missing = (everything & ~known).bit_count()
        pairs += missing
        if missing and not resident >> i & 1:
            returns += 1
    return max(-(-pairs // (2 * (capacity - 1))), returns)


def main() -> None:
    """Search with wider and wider beams until the bound or the time is reached, and keep every improvement."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("partitions", type=int)
    asked.add_argument("capacity", type=int)
    asked.add_argument("--seconds", type=float, default=60.0)
    asked.add_argument("--width", type=int, default=200, help="of the first beam; each later one is wider by half")
    asked.add_argument("--table", type=Path, default=_TABLE, help="where to keep what is found")
    given = asked.parse_args()
    p, c, width, seed = given.partitions, given.capacity, given.width, 0
    until, limit = monotonic() + given.seconds, fewest_swaps(p, c)
    fewest = best(p, c).swaps
    while fewest > limit and monotonic() < until:
        found = search(p, c, width=width, seed=seed, below=fewest, until=until)
        width, seed = width + width // 2, seed + 1
        if found is None:
            continue
        fewest = replay(from_swaps(p, c, found))
        table = json.loads(given.table.read_text()) if given.table.exists() else {}
        table[f"{p},{c}"] = found
        lines = (f'"{size}": {json.dumps(swaps, separators=(",", ":"))}' for size, swaps in sorted(table.items(), key=_size))
        given.table.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"p={p} c={c}: {fewest} loads; BETA {beta_swaps(p, c)}, at least {limit}")


def _size(item: tuple[str, object]) -> list[int]:
    return [int(number) for number in item[0].split(",")]


if __name__ == "__main__":
    main()
