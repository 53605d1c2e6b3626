"""Drawing neighbors on a GPU: the same numbers as native/vector_draw.cpp, from the same Philox counters."""

import triton
import triton.language as tl

_UNIT = tl.constexpr(2.0**-53)


@triton.jit  # type: ignore[untyped-decorator]
def words_of(key, block, node, hop):  # type: ignore[no-untyped-def]
    """Philox4x32-10 of the counter (block, node, hop): four words."""
    low, high = (node & 0xFFFFFFFF).to(tl.uint32), (node >> 32).to(tl.uint32)
    return tl.philox(key, block.to(tl.uint32), low, high, hop.to(tl.uint32))


@triton.jit  # type: ignore[untyped-decorator]
def drawn_below(key, slot, node, hop, degree, bound):  # type: ignore[no-untyped-def]
    """A number below `bound` for every slot, from one word, or from two where the row is long (kNarrowDegree)."""
    wide = degree > 65536
    w0, w1, w2, w3 = words_of(key, tl.where(wide, slot // 2, slot // 4), node, hop)
    place = slot % 4
    word = tl.where(place < 2, tl.where(place == 0, w0, w1), tl.where(place == 2, w2, w3))
    limit = bound.to(tl.uint64)
    narrow = (word.to(tl.uint64) * limit) >> 32
    even = slot % 2 == 0
    pair = (tl.where(even, w0, w2).to(tl.uint64) << 32) | tl.where(even, w1, w3).to(tl.uint64)
    return tl.where(wide, tl.umulhi(pair, limit), narrow).to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator]
def drawn_by_weight(key, slot, node, hop, start, degree, live, cumulative):  # type: ignore[no-untyped-def]
    """An entry for every slot in proportion to its weight, as native/weigh.h draws it: the first whose sum of weights is above
    u * (the row's sum).  # [1, slots], [rows, 1] -> [rows, slots]"""
    w0, w1, w2, w3 = words_of(key, slot // 2, node, hop)
    even = slot % 2 == 0
    high, low = tl.where(even, w0, w2).to(tl.int64), tl.where(even, w1, w3).to(tl.int64)
    total = tl.load(cumulative + start + degree - 1, mask=degree > 0, other=0.0)
    wanted = ((high << 21) | (low >> 11)).to(tl.float64) * _UNIT * total
    first = tl.zeros_like(high)
    last = first + tl.where(live, degree - 1, 0)
    while tl.max((first < last).to(tl.int32)) > 0:
        middle = first + (last - first) // 2
        above = tl.load(cumulative + start + middle, mask=first < last, other=0.0) > wanted
        open_still = first < last
        last = tl.where(open_still & above, middle, last)
        first = tl.where(open_still & (above == 0), middle + 1, first)
    return first


@triton.jit  # type: ignore[untyped-decorator]
def tree_word(hop, tree):  # type: ignore[no-untyped-def]
    """The last word of the counter for draws of a tree: no two trees share one."""
    return hop | ((tree.to(tl.int64) + 1) << 8)


@triton.jit  # type: ignore[untyped-decorator]
def floyd_tile(key, slot, node, hop, degree, take, slots: tl.constexpr):  # type: ignore[no-untyped-def]
    """Floyd's method for rows of a tile: slot i draws from 0 .. degree - take + i and takes that bound itself when the drawn one
    is taken already.  # [1, slots], [rows, 1] -> [rows, slots]"""
    chosen = drawn_below(key, slot, node, hop, degree, tl.maximum(degree - take + slot + 1, 1))
    for i in range(1, slots):
        mine = tl.sum(tl.where(slot == i, chosen, 0), axis=1)[:, None]
        taken = tl.max(tl.where((slot < i) & (chosen == mine), 1, 0), axis=1)[:, None]
        chosen = tl.where((slot == i) & (taken > 0), degree - take + i, chosen)
    return tl.where(take == degree, slot, chosen)


@triton.jit  # type: ignore[untyped-decorator]
def floyd_row(key, node, hop, degree, take, chosen, chunk: tl.constexpr):  # type: ignore[no-untyped-def]
    """The same for one row of any length, into memory at `chosen`: every draw is compared with those before it."""
    lane = tl.arange(0, chunk)
    for i in range(take):
        slot = tl.full([1], 0, tl.int64) + i
        mine = tl.sum(drawn_below(key, slot, node, hop, degree, slot + (degree - take + 1)), axis=0)
        taken = 0
        for first in range(0, i, chunk):
            before = tl.load(chosen + first + lane, mask=first + lane < i, other=-1)
            taken = tl.maximum(taken, tl.max((before == mine).to(tl.int32), axis=0))
        tl.store(chosen + i, tl.where(taken > 0, degree - take + i, mine))
        tl.debug_barrier()  # what one thread has written the others read next
