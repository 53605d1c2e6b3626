"""Neighbours of the lowest rank on a GPU: the same that native/vector_rank.cpp takes, from the same numbers.

The rank of an entry is a 32-bit key, above its offset in the row. A tile of short rows keeps its keys in registers and finds each
row's highest key to take by bisection. A row of up to a chunk is such a tile by itself. Of a longer one the key is found digit by
digit, from counts of the digits over the whole row, and keys are made again in every pass rather than kept: four passes and one
that takes. No multiplication here may be fused with an addition, or the logarithm would not have the CPU's bits: launch with
`enable_fp_fusion=False`.
"""

import triton
import triton.language as tl

from headrace.kernels._triton_draw import tree_word, words_of
from headrace.kernels._triton_hop import hand_over, hop_rows

_Q6 = tl.constexpr(float.fromhex("0x1.645EA0p-4"))
_Q5 = tl.constexpr(float.fromhex("0x1.2432B8p-3"))
_Q4 = tl.constexpr(float.fromhex("0x1.317458p-3"))
_Q3 = tl.constexpr(float.fromhex("0x1.53824Ap-3"))
_Q2 = tl.constexpr(float.fromhex("0x1.98D7F2p-3"))
_Q1 = tl.constexpr(float.fromhex("0x1.000382p-2"))
_Q0 = tl.constexpr(float.fromhex("0x1.5556D8p-2"))
_LOG_2 = tl.constexpr(float.fromhex("0x1.62E430p-1"))
_UNIT = tl.constexpr(2.0**-23)
_BINS = tl.constexpr(256)
_MOST = tl.constexpr(0xFFFFFFFF)


@triton.jit  # type: ignore[untyped-decorator]
def minus_log(word):  # type: ignore[no-untyped-def]
    """-log of the random number that the upper 23 bits of `word` are: native/minus_log.h, operation by operation."""
    x = ((word >> 9).to(tl.int32).to(tl.float32) + 0.5) * _UNIT
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    q = f * _Q6 - _Q5
    q = q * f + _Q4
    q = q * f - _Q3
    q = q * f + _Q2
    q = q * f - _Q1
    q = q * f + _Q0
    log_m = f + (f * f) * (q * f - 0.5)
    return (-exponent).to(tl.float32) * _LOG_2 - log_m


@triton.jit  # type: ignore[untyped-decorator]
def _entry_words(key, word, node, first, rows: tl.constexpr, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """Words of entries `first` and behind it: four to a block.  # -> [rows, width]"""
    block = first // 4 + tl.arange(0, width // 4).to(tl.int64)[None, :]
    w0, w1, w2, w3 = words_of(key, block, node, word)
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [rows, width])


@triton.jit  # type: ignore[untyped-decorator]
def _neighbour_words(key, word, batch, dependency, neighbour, depends: tl.constexpr):  # type: ignore[no-untyped-def]
    """Words of neighbours: the first of a block each. Where batches depend on one another, a neighbour keeps its block for
    `dependency` batches; which of them is the first is its own."""
    block = neighbour * 0 + batch
    if depends:
        own, _, _, _ = words_of(key, neighbour * 0 + _MOST, neighbour, neighbour * 0 + _MOST)
        phase = (own.to(tl.uint64) * dependency.to(tl.uint64)) >> 32
        block = (batch + phase.to(tl.int64)) // dependency.to(tl.int64)
    w0, _, _, _ = words_of(key, block, neighbour, word)
    return w0


@triton.jit  # type: ignore[untyped-decorator]
def _keys(  # type: ignore[no-untyped-def]
    key,
    word,
    batch,
    dependency,
    node,
    start,
    first,
    live,
    neighbours,
    weight,
    labor: tl.constexpr,
    depends: tl.constexpr,
    weighted: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
):
    """Keys of entries `first` .. `first` + `width` of rows.  # [rows, 1] -> [rows, width], uint32"""
    entry = start + first + tl.arange(0, width).to(tl.int64)[None, :]
    if labor:
        neighbour = tl.load(neighbours + entry, mask=live, other=0).to(tl.int64)
        words = _neighbour_words(key, word, batch, dependency, neighbour, depends)
    else:
        words = _entry_words(key, word, node, first, rows, width)
    if weighted:
        number = tl.math.div_rn(minus_log(words), tl.load(weight + entry, mask=live, other=1.0))
        words = number.to(tl.uint32, bitcast=True)  # not negative: the bits are in the numbers' order
    return words


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
        low = tl.where(count == take, middle, tl.where(count < take, middle + 1, low))
        high = tl.where(count >= take, middle, high)
        low = tl.minimum(low, high)
    below = tl.sum((live & (keys < high)).to(tl.int32), axis=1)[:, None]
    return live & ((choice == 0) | _taken(keys, live, high, take - below))


@triton.jit(do_not_specialize=["hop", "word", "dependency"])  # type: ignore[untyped-decorator]
def rank_kernel(  # type: ignore[no-untyped-def]
    request,
    counts,
    nodes,
    trees,
    starts,
    degrees,
    row_ends,
    neighbours,
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
    """The entries of lowest rank of each row, in the row's order: short rows of a tile together, then its long ones."""
    begin, end = hop_rows(counts, hop)
    top = begin + tl.program_id(0).to(tl.int64) * rows
    if top >= end:
        return
    key, batch = tl.load(request), tl.load(request + 4)
    claim = tl.load(request + 1) + (ranks - 1 - pending)
    row = top + tl.arange(0, rows).to(tl.int64)[:, None]
    there = row < end
    node = tl.load(nodes + row, mask=there, other=0).to(tl.int64)
    start, degree = tl.load(starts + row, mask=there, other=0), tl.load(degrees + row, mask=there, other=0)
    edge = tl.load(row_ends + row, mask=there, other=0)
    take = tl.load(row_ends + row + 1, mask=there, other=0) - edge
    tree, last_word = row, word + row * 0
    if disjoint:
        tree = tl.load(trees + row, mask=there, other=0)
        last_word = tree_word(word, tree)
    offset = tl.arange(0, width).to(tl.int64)[None, :]
    short = there & (degree <= width)
    live = short & (offset < degree)
    if tl.max((short & (take < degree)).to(tl.int32)) > 0:
        keys = _keys(
            key, last_word, batch, dependency, node, start, 0, live, neighbours, weight, labor, depends, weighted, rows, width
        )
        chosen = _lowest(keys, live, take.to(tl.int32), short & (take < degree))
    else:
        chosen = live
    place = edge + tl.cumsum(chosen.to(tl.int32), axis=1) - 1
    hand_over(neighbours, raw, positions, edge_trees, stamp, place, start + offset, tree, chosen, claim, keep, disjoint)
    if tl.max((there & (degree > width)).to(tl.int32)) > 0:
        for i in range(tl.minimum(end - top, rows)):
            if tl.load(degrees + top + i) > width:
                _rank_long(
                    key,
                    word,
                    batch,
                    dependency,
                    claim,
                    top + i,
                    nodes,
                    trees,
                    starts,
                    degrees,
                    row_ends,
                    neighbours,
                    weight,
                    raw,
                    edge_trees,
                    positions,
                    stamp,
                    labor,
                    depends,
                    weighted,
                    disjoint,
                    keep,
                    chunk,
                )


@triton.jit  # type: ignore[untyped-decorator]
def _rank_long(  # type: ignore[no-untyped-def]
    key,
    word,
    batch,
    dependency,
    claim,
    row,
    nodes,
    trees,
    starts,
    degrees,
    row_ends,
    neighbours,
    weight,
    raw,
    edge_trees,
    positions,
    stamp,
    labor: tl.constexpr,
    depends: tl.constexpr,
    weighted: tl.constexpr,
    disjoint: tl.constexpr,
    keep: tl.constexpr,
    chunk: tl.constexpr,
):
    """The same for one row of any length, a chunk at a time."""
    row = row + tl.zeros([1, 1], tl.int64)
    node = tl.load(nodes + row).to(tl.int64)
    start, degrees_here, edge = tl.load(starts + row), tl.load(degrees + row), tl.load(row_ends + row)
    degree = tl.max(degrees_here)
    take = tl.max(tl.load(row_ends + row + 1) - edge).to(tl.int32)
    tree, last_word = row, word + row * 0
    if disjoint:
        tree = tl.load(trees + row)
        last_word = tree_word(word, tree)
    offset = tl.arange(0, chunk).to(tl.int64)[None, :]
    if degree <= chunk:
        live = offset < degrees_here
        keys = _keys(
            key, last_word, batch, dependency, node, start, 0, live, neighbours, weight, labor, depends, weighted, 1, chunk
        )
        chosen = _lowest(keys, live, take, (degrees_here > take))
        place = edge + tl.cumsum(chosen.to(tl.int32), axis=1) - 1
        hand_over(neighbours, raw, positions, edge_trees, stamp, place, start + offset, tree, chosen, claim, keep, disjoint)
    else:
        limit = tl.zeros([], tl.uint32)
        left = take  # of those at the limit's digits so far
        if take < degree:
            bins = tl.arange(0, _BINS)
            for digit in tl.static_range(4):
                shift: tl.constexpr = 24 - 8 * digit
                counted = tl.zeros([_BINS], tl.int32)
                for first in range(0, degree, chunk):
                    live = first + offset < degrees_here
                    keys = _keys(
                        key,
                        last_word,
                        batch,
                        dependency,
                        node,
                        start,
                        first,
                        live,
                        neighbours,
                        weight,
                        labor,
                        depends,
                        weighted,
                        1,
                        chunk,
                    )
                    if digit > 0:
                        live = live & ((keys >> (shift + 8)) == limit)
                    digits = ((keys >> shift) & 255).to(tl.int32)
                    counted += tl.histogram(tl.reshape(digits, [chunk]), _BINS, mask=tl.reshape(live, [chunk]))
                up_to = tl.cumsum(counted, axis=0)
                found = tl.sum((up_to < left).to(tl.int32), axis=0)
                left -= tl.sum(tl.where(bins < found, counted, 0), axis=0)
                limit = (limit << 8) | found.to(tl.uint32)
        placed = tl.zeros([], tl.int32)
        for first in range(0, degree, chunk):
            live = first + offset < degrees_here
            if take < degree:
                keys = _keys(
                    key,
                    last_word,
                    batch,
                    dependency,
                    node,
                    start,
                    first,
                    live,
                    neighbours,
                    weight,
                    labor,
                    depends,
                    weighted,
                    1,
                    chunk,
                )
                chosen = _taken(keys, live, limit, left)
                left -= tl.sum((chosen & (keys == limit)).to(tl.int32))
            else:
                chosen = live
            place = edge + placed + tl.cumsum(chosen.to(tl.int32), axis=1) - 1
            placed += tl.sum(chosen.to(tl.int32))
            source = start + first + offset
            hand_over(neighbours, raw, positions, edge_trees, stamp, place, source, tree, chosen, claim, keep, disjoint)
