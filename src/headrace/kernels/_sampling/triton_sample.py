"""Neighbor sampling on a GPU, in eight launches for three hops and no synchronization: sizes stay on the device.

Every hop is two kernels. One that draws (`draw_kernel` here, or `rank_kernel` of triton_rank.py) takes neighbors of the rows
that the hop before added and lets each neighbor remember, by an atomic maximum, the earliest position at which it appears.
`number_kernel` (triton_number.py) gives those that are new their places, in order of appearance, by a prefix sum over tiles that
wait for one another, and prepares their rows for the next hop. At the end `relabel_kernel` writes every edge's local id.

What a node remembers is one number, its stamp: `base + ranks - 1 - rank`. The rank of a node in the sample is its local id, of one
that is only claimed `pending` + the position. So the least rank wins, and all stamps of earlier batches, being below `base`,
lose: nothing is cleared between batches. The words of a tile carry the batch's `tag` for the same reason. Where trees are
disjoint, stamps stand in the cells of a hash table of (node, tree) in place of an array over all nodes (triton_place.py).

`request` is (Philox key, base, tag, number of seeds, batch); `counts` holds, for each hop, the nodes of the sample so far and,
after those, the edges so far.
"""

import triton
import triton.language as tl

from headrace.kernels._sampling.triton_draw import drawn_below, drawn_by_weight, floyd_row, floyd_tile
from headrace.kernels._sampling.triton_hop import hand_over, hop_rows, load_rows


@triton.jit(do_not_specialize=["hop"])  # type: ignore[untyped-decorator]
def draw_kernel(  # type: ignore[no-untyped-def]
    request,
    counts,
    nodes,
    trees,
    starts,
    degrees,
    row_ends,
    neighbors,
    cumulative,
    raw,
    edge_trees,
    positions,
    stamp,
    hop,
    ranks,
    pending,
    replace: tl.constexpr,
    weighted: tl.constexpr,
    disjoint: tl.constexpr,
    keep: tl.constexpr,
    rows: tl.constexpr,
    slots: tl.constexpr,
):
    """Up to `slots` neighbors of each row, a tile of rows per program."""
    begin, end = hop_rows(counts, hop)
    first = begin + tl.program_id(0).to(tl.int64) * rows
    if first >= end:
        return
    row = first + tl.arange(0, rows).to(tl.int64)[:, None]
    node, start, degree, edge, take, tree, word = load_rows(nodes, starts, degrees, row_ends, trees, row, row < end, hop, disjoint)
    slot = tl.arange(0, slots).to(tl.int64)[None, :]
    live = slot < take
    key, base = tl.load(request), tl.load(request + 1)
    if weighted:
        chosen = drawn_by_weight(key, slot, node, word, start, degree, live, cumulative)
    elif replace:
        chosen = drawn_below(key, slot, node, word, degree, tl.maximum(degree, 1))
    else:
        chosen = floyd_tile(key, slot, node, word, degree, take, slots)
    claim = base + (ranks - 1 - pending)
    hand_over(neighbors, raw, positions, edge_trees, stamp, edge + slot, start + chosen, tree, live, claim, keep, disjoint)


@triton.jit(do_not_specialize=["hop"])  # type: ignore[untyped-decorator]
def draw_long_kernel(  # type: ignore[no-untyped-def]
    request,
    counts,
    nodes,
    trees,
    starts,
    degrees,
    row_ends,
    neighbors,
    cumulative,
    raw,
    edge_trees,
    positions,
    stamp,
    hop,
    ranks,
    pending,
    replace: tl.constexpr,
    weighted: tl.constexpr,
    disjoint: tl.constexpr,
    chunk: tl.constexpr,
):
    """Any number of neighbors, a row per program. `positions` is also where draws are remembered."""
    begin, end = hop_rows(counts, hop)
    row = begin + tl.program_id(0).to(tl.int64)
    if row >= end:
        return
    node, start, degree, edge, take, tree, word = load_rows(nodes, starts, degrees, row_ends, trees, row, True, hop, disjoint)
    key, base = tl.load(request), tl.load(request + 1)
    if not replace and take < degree:
        floyd_row(key, node, word, degree, take, positions + edge, chunk)
    lane = tl.arange(0, chunk).to(tl.int64)
    for first in range(0, take, chunk):
        slot = first + lane
        live = slot < take
        if weighted:
            chosen = drawn_by_weight(key, slot, node, word, start, degree, live, cumulative)
        elif replace:
            chosen = drawn_below(key, slot, node, word, degree, degree + slot * 0)
        else:
            chosen = tl.load(positions + edge + slot, mask=live & (take < degree), other=0)
            chosen = tl.where(take < degree, chosen, slot)
        claim = base + (ranks - 1 - pending)
        hand_over(neighbors, raw, positions, edge_trees, stamp, edge + slot, start + chosen, tree, live, claim, True, disjoint)
