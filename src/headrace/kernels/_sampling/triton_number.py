"""Places for the nodes that a hop found, and local ids for its edges. See triton_sample.py."""

import triton
import triton.language as tl

from headrace.kernels._sampling.triton_hop import hop_rows


@triton.jit  # type: ignore[untyped-decorator]
def _sum_before(words, tile, tag, chunk: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of what all tiles before this one have published, once they have."""
    lane = tl.arange(0, chunk)
    total = tl.zeros([chunk], tl.int64)
    for first in range(0, tile, chunk):
        inside = first + lane < tile
        word = tl.load(words + first + lane, mask=inside, other=tag << 40, volatile=True)
        while tl.min(word >> 40, axis=0) < tag:
            word = tl.load(words + first + lane, mask=inside, other=tag << 40, volatile=True)
        total += word & 0xFFFFFFFFFF
    return tl.sum(total, axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def _past(time, start, degree, until, inclusive: tl.constexpr):  # type: ignore[no-untyped-def]
    """How many entries of each row lie before `until`: a prefix, for times do not decrease.  # [n] -> [n]"""
    low, high = tl.zeros_like(degree), degree
    while tl.max((low < high).to(tl.int32), axis=0) > 0:
        open_still = low < high
        middle = low + (high - low) // 2
        at = tl.load(time + start + middle, mask=open_still, other=0)
        if inclusive:
            before = at <= until
        else:
            before = at < until
        low = tl.where(open_still & before, middle + 1, low)
        high = tl.where(open_still & (before == 0), middle, high)
    return low


@triton.jit(do_not_specialize=["hop", "hops", "fanout"])  # type: ignore[untyped-decorator]
def number_kernel(  # type: ignore[no-untyped-def]
    request,
    counts,
    raw,
    nodes,
    starts,
    degrees,
    row_ends,
    trees,
    edge_trees,
    places,
    indptr,
    time,
    seed_times,
    since,
    positions,
    stamp,
    new_words,
    take_words,
    hop,
    hops,
    fanout,
    ranks,
    pending,
    seeds: tl.constexpr,
    last: tl.constexpr,
    replace: tl.constexpr,
    disjoint: tl.constexpr,
    temporal: tl.constexpr,
    inclusive: tl.constexpr,
    each: tl.constexpr,
    windowed: tl.constexpr,
    latest: tl.constexpr,
    size: tl.constexpr,
    chunk: tl.constexpr,
):
    """Places for the nodes that hop `hop` found first (or for the seeds, as hop -1), and the rows the next hop will expand.

    each: every edge finds a node of its own, whose past ends at the edge's time. windowed: nothing before `since` counts.
    """
    tile = tl.program_id(0)
    if seeds:
        begin = tl.zeros([], tl.int64)
        end = tl.load(request + 3)
        nodes_before = tl.zeros([], tl.int64)
    else:
        first_row, last_row = hop_rows(counts, hop)
        begin, end = tl.load(row_ends + first_row), tl.load(row_ends + last_row)
        nodes_before = last_row
    tiles = tl.maximum((end - begin + size - 1) // size, 1)
    if tile >= tiles:
        return
    edge = begin + tile.to(tl.int64) * size + tl.arange(0, size)
    valid = edge < end
    base, tag = tl.load(request + 1), tl.load(request + 2)
    node = tl.load(raw + edge, mask=valid, other=0)
    place = node
    if disjoint:
        tree = edge.to(tl.int32)
        if not seeds:
            tree = tl.load(edge_trees + edge, mask=valid, other=0)
            if not each:
                place = tl.load(places + edge, mask=valid, other=0)
    if seeds or each:
        new = valid
        if not disjoint:
            tl.atomic_max(stamp + node, (base + ranks - 1 - edge).to(tl.int32), mask=valid, sem="relaxed")
    else:
        claim = base + (ranks - 1 - pending) - edge
        new = valid & (tl.load(stamp + place, mask=valid, other=-1).to(tl.int64) == claim)
    numbered = tl.cumsum(new.to(tl.int64), axis=0)
    count = tl.sum(new.to(tl.int64), axis=0)
    tl.atomic_xchg(new_words + tile, (tag << 40) | count, sem="relaxed")
    if not last:
        start = tl.load(indptr + node, mask=new, other=0)
        degree = tl.load(indptr + node + 1, mask=new, other=0) - start
        if temporal:
            if each and not seeds:
                until = tl.load(time + tl.load(positions + edge, mask=new, other=0), mask=new, other=0)
            else:
                until = tl.load(seed_times + tree, mask=new, other=0)
            past = _past(time, start, degree, until, inclusive)
            if windowed:
                earlier = _past(time, start, degree, tl.load(since), False)
                start += earlier
                past = tl.maximum(past - earlier, 0)
            degree = past
        if fanout < 0:
            take = degree
        elif replace:
            take = tl.where(degree > 0, degree * 0 + fanout, 0)
        else:
            take = tl.minimum(degree, degree * 0 + fanout)
        if latest:
            start += degree - take
            degree = take
        taken = tl.cumsum(take, axis=0)
        all_taken = tl.sum(take, axis=0)
        tl.atomic_xchg(take_words + tile, (tag << 40) | all_taken, sem="relaxed")
    local = nodes_before + _sum_before(new_words, tile, tag, chunk) + numbered - 1
    tl.store(nodes + local, node, mask=new)
    if disjoint:
        tl.store(trees + local, tree, mask=new)
    if not seeds and not each:
        tl.store(stamp + place, (base + ranks - 1 - local).to(tl.int32), mask=new)
    edges_before = end
    if not last:
        if seeds:
            edges_before = tl.zeros([], tl.int64)
            if tile == 0:
                tl.store(row_ends, tl.zeros([], tl.int64))
        edges_before += _sum_before(take_words, tile, tag, chunk)
        tl.store(starts + local, start, mask=new)
        tl.store(degrees + local, degree, mask=new)
        tl.store(row_ends + local + 1, edges_before + taken, mask=new)
        edges_before += all_taken
    if tile == tiles - 1:
        tl.store(counts + hop + 1, tl.max(tl.where(valid, local, nodes_before - 1), axis=0) + 1)
        if not last:
            tl.store(counts + hops + 2 + hop, edges_before)


@triton.jit(do_not_specialize=["hops"])  # type: ignore[untyped-decorator]
def relabel_kernel(  # type: ignore[no-untyped-def]
    request,
    counts,
    row_ends,
    places,
    stamp,
    indices,
    positions,
    edge_id,
    time,
    edge_times,
    hops,
    ranks,
    each: tl.constexpr,
    identify: tl.constexpr,
    timed: tl.constexpr,
    size: tl.constexpr,
):
    """The local id of every edge's neighbor, from the place of its stamp; and, in place of its position, the edge's id. `each`: of
    a node of its own. `timed`: its time too."""
    end = tl.load(row_ends + tl.load(counts + hops - 1))
    edge = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    valid = edge < end
    if each:
        local = tl.load(request + 3) + edge
    else:
        place = tl.load(places + edge, mask=valid, other=0)
        local = tl.load(request + 1) + ranks - 1 - tl.load(stamp + place, mask=valid, other=0).to(tl.int64)
    tl.store(indices + edge, local.to(tl.int32), mask=valid)
    if timed:
        position = tl.load(positions + edge, mask=valid, other=0)
        tl.store(edge_times + edge, tl.load(time + position, mask=valid, other=0), mask=valid)
    if identify:
        position = tl.load(positions + edge, mask=valid, other=0)
        tl.store(positions + edge, tl.load(edge_id + position, mask=valid, other=0).to(tl.int64), mask=valid)
