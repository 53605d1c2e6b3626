"""Neighbors of the lowest rank on a GPU: the same that native/vector_rank.cpp takes.

The rank of an entry is a 32-bit key, above its offset in the row. A tile of short rows keeps its keys in registers and finds each
row's highest key to take by bisection. A row of up to a chunk is such a tile by itself. Of a longer one the key is found digit by
digit, from counts of the digits over the whole row, and keys are made again in every pass rather than kept: four passes and one
that takes.
"""

import triton
import triton.language as tl

from headrace.kernels._sampling.triton_hop import hand_over, hop_rows, load_rows
from headrace.kernels._sampling.triton_keys import keys_of

_BINS = tl.constexpr(256)
_MOST = tl.constexpr(0xFFFFFFFF)


@triton.jit  # type: ignore[untyped-decorator]
def _taken(keys, live, limit, equals):  # type: ignore[no-untyped-def]
    """Entries below the limit, and the first `equals` of those at it."""
    at = live & (keys == limit)
    return (live & (keys < limit)) | (at & (tl.cumsum(at.to(tl.int32), axis=1) <= equals))


@triton.jit  # type: ignore[untyped-decorator]
def _lowest(keys, live, take, choice):  # type: ignore[no-untyped-def]
    """Which entries are the `take` lowest of their row, where there is a choice.  # [rows, width], [rows, 1] -> [rows, width]"""
    low = tl.min(tl.where(live, keys, _MOST), axis=1)[:, None]
    high = tl.max(tl.where(live, keys, 0), axis=1)[:, None]
    low = tl.where(choice, low, high)
    while tl.max((low < high).to(tl.int32)) > 0:
        middle = low + ((high - low) >> 1)
        count = tl.sum((live & (keys <= middle)).to(tl.int32), axis=1)[:, None]
        count = tl.where(choice, count, take)  # rows without a choice stand still
        low = tl.where(count == take, middle, tl.where(count < take, middle + 1, low))
        high = tl.where(count >= take, middle, high)
    below = tl.sum((live & (keys < high)).to(tl.int32), axis=1)[:, None]
    return live & ((choice == 0) | _taken(keys, live, high, take - below))


@triton.jit  # type: ignore[untyped-decorator]
def _next_digit(  # type: ignore[no-untyped-def]
    ranked,
    degree,
    limit,
    left,
    shift: tl.constexpr,
    labor: tl.constexpr,
    depends: tl.constexpr,
    weighted: tl.constexpr,
    chunk: tl.constexpr,
):
    """One more digit of the highest key to take, the one at `shift`, and how many are to be taken of the keys that begin so."""
    counted = tl.zeros([_BINS], tl.int32)
    offset = tl.arange(0, chunk).to(tl.int64)[None, :]
    for first in range(0, degree, chunk):
        live = first + offset < degree
        keys = keys_of(ranked, first, live, labor, depends, weighted)
        if shift < 24:
            live = live & ((keys >> (shift + 8)) == limit)
        digit = ((keys >> shift) & 255).to(tl.int32)
        counted += tl.histogram(tl.reshape(digit, [chunk]), _BINS, mask=tl.reshape(live, [chunk]))
    next_digit = tl.sum((tl.cumsum(counted, axis=0) < left).to(tl.int32), axis=0)
    left -= tl.sum(tl.where(tl.arange(0, _BINS) < next_digit, counted, 0), axis=0)
    return (limit << 8) | next_digit.to(tl.uint32), left


@triton.jit(do_not_specialize=["hop", "word", "dependency"])  # type: ignore[untyped-decorator]
def rank_kernel(  # type: ignore[no-untyped-def]
    request,
    counts,
    nodes,
    trees,
    starts,
    degrees,
    row_ends,
    neighbors,
    weight,
    raw,
    edge_trees,
    positions,
    stamp,
    hop,
    word,
    dependency,
    ranks,
    pending,
    labor: tl.constexpr,
    depends: tl.constexpr,
    weighted: tl.constexpr,
    disjoint: tl.constexpr,
    keep: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
):
    """The entries of lowest rank of each row that has up to `width`, in the row's order."""
    begin, end = hop_rows(counts, hop)
    top = begin + tl.program_id(0).to(tl.int64) * rows
    if top >= end:
        return
    key, batch = tl.load(request), tl.load(request + 4)
    claim = tl.load(request + 1) + (ranks - 1 - pending)
    row = top + tl.arange(0, rows).to(tl.int64)[:, None]
    valid = row < end
    node, start, degree, edge, take, tree, last_word = load_rows(
        nodes, starts, degrees, row_ends, trees, row, valid, word, disjoint
    )
    offset = tl.arange(0, width).to(tl.int64)[None, :]
    short = valid & (degree <= width)
    live = short & (offset < degree)
    if tl.max((short & (take < degree)).to(tl.int32)) > 0:
        ranked = key, last_word, batch, dependency, node, start, neighbors, weight
        keys = keys_of(ranked, 0, live, labor, depends, weighted)
        chosen = _lowest(keys, live, take.to(tl.int32), short & (take < degree))
    else:
        chosen = live
    place = edge + tl.cumsum(chosen.to(tl.int32), axis=1) - 1
    hand_over(neighbors, raw, positions, edge_trees, stamp, place, start + offset, tree, chosen, claim, keep, disjoint)


@triton.jit(do_not_specialize=["hop", "word", "dependency"])  # type: ignore[untyped-decorator]
def rank_long_kernel(  # type: ignore[no-untyped-def]
    request,
    counts,
    nodes,
    trees,
    starts,
    degrees,
    row_ends,
    neighbors,
    weight,
    raw,
    edge_trees,
    positions,
    stamp,
    hop,
    word,
    dependency,
    ranks,
    pending,
    labor: tl.constexpr,
    depends: tl.constexpr,
    weighted: tl.constexpr,
    disjoint: tl.constexpr,
    keep: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    chunk: tl.constexpr,
):
    """The entries of lowest rank of each row that has more than `width`: those of `rows` rows one after the other. They are a
    kernel of their own because they need so many registers that short rows would wait for room."""
    begin, end = hop_rows(counts, hop)
    top = begin + tl.program_id(0).to(tl.int64) * rows
    for row in range(top, tl.minimum(top + rows, end)):
        if tl.load(degrees + row) > width:
            key, batch = tl.load(request), tl.load(request + 4)
            claim = tl.load(request + 1) + (ranks - 1 - pending)
            node, start, row_degree, edge, row_take, tree, last_word = load_rows(
                nodes, starts, degrees, row_ends, trees, row + tl.zeros([1, 1], tl.int64), True, word, disjoint
            )
            ranked = key, last_word, batch, dependency, node, start, neighbors, weight
            degree, take = tl.max(row_degree), tl.max(row_take).to(tl.int32)  # as scalars
            offset = tl.arange(0, chunk).to(tl.int64)[None, :]
            if degree <= chunk:
                live = offset < row_degree
                chosen = _lowest(keys_of(ranked, 0, live, labor, depends, weighted), live, take, row_degree > take)
                place = edge + tl.cumsum(chosen.to(tl.int32), axis=1) - 1
                source = start + offset
                hand_over(neighbors, raw, positions, edge_trees, stamp, place, source, tree, chosen, claim, keep, disjoint)
            else:  # a chunk at a time
                limit = tl.zeros([], tl.uint32)
                left = take
                if take < degree:
                    for digit in tl.static_range(4):
                        limit, left = _next_digit(ranked, degree, limit, left, 24 - 8 * digit, labor, depends, weighted, chunk)
                placed = tl.zeros([], tl.int32)
                for first in range(0, degree, chunk):
                    live = first + offset < row_degree
                    if take < degree:
                        keys = keys_of(ranked, first, live, labor, depends, weighted)
                        chosen = _taken(keys, live, limit, left)
                        left -= tl.sum((chosen & (keys == limit)).to(tl.int32))
                    else:
                        chosen = live
                    place = edge + placed + tl.cumsum(chosen.to(tl.int32), axis=1) - 1
                    placed += tl.sum(chosen.to(tl.int32))
                    source = start + first + offset
                    hand_over(neighbors, raw, positions, edge_trees, stamp, place, source, tree, chosen, claim, keep, disjoint)
