"""Neighbour sampling on a GPU, in eight launches for three hops and no synchronisation: sizes stay on the device.

Every hop is two kernels. `draw_kernel` takes neighbours of the rows that the hop before added and lets each neighbour remember,
by an atomic maximum, the earliest position at which it appears. `number_kernel` gives those that are new their places, in order of
appearance, by a prefix sum over tiles that wait for one another, and prepares their rows for the next hop. At the end
`relabel_kernel` writes every edge's local id.

What a node remembers is one number, its stamp: `base + ranks - 1 - rank`. The rank of a node in the sample is its local id, of one
that is only claimed `pending` + the position. So the least rank wins, and all stamps of earlier batches, being below `base`,
lose: nothing is cleared between batches. The words of a tile carry the batch's `tag` for the same reason.

`request` is (Philox key, base, tag, number of seeds); `counts` holds, for each hop, the nodes of the sample so far and, after
those, the edges so far.
"""

import triton
import triton.language as tl

from headrace.kernels._triton_draw import drawn_below, floyd_row, floyd_tile


@triton.jit  # type: ignore[untyped-decorator]
def _hop_rows(counts, hop):  # type: ignore[no-untyped-def]
    """The rows that hop `hop` expands: those the hop before added."""
    begin = tl.load(counts + hop - 1, mask=hop > 0, other=0)
    return begin, tl.load(counts + hop)


@triton.jit(do_not_specialize=["hop"])  # type: ignore[untyped-decorator]
def draw_kernel(  # type: ignore[no-untyped-def]
    request,
    counts,
    nodes,
    starts,
    degrees,
    row_ends,
    neighbours,
    raw,
    positions,
    stamp,
    hop,
    ranks,
    pending,
    replace: tl.constexpr,
    keep: tl.constexpr,
    rows: tl.constexpr,
    slots: tl.constexpr,
):
    """Up to `slots` neighbours of each row, a tile of rows per program."""
    begin, end = _hop_rows(counts, hop)
    first = begin + tl.program_id(0).to(tl.int64) * rows
    if first >= end:
        return
    row = first + tl.arange(0, rows).to(tl.int64)[:, None]
    there = row < end
    node = tl.load(nodes + row, mask=there, other=0).to(tl.int64)
    start, degree = tl.load(starts + row, mask=there, other=0), tl.load(degrees + row, mask=there, other=0)
    edge, stop = tl.load(row_ends + row, mask=there, other=0), tl.load(row_ends + row + 1, mask=there, other=0)
    take = stop - edge
    slot = tl.arange(0, slots).to(tl.int64)[None, :]
    live = slot < take
    key, base = tl.load(request), tl.load(request + 1)
    if replace:
        chosen = drawn_below(key, slot, node, hop, degree, tl.maximum(degree, 1))
    else:
        chosen = floyd_tile(key, slot, node, hop, degree, take, slots)
    neighbour = tl.load(neighbours + start + chosen, mask=live, other=0)
    tl.store(raw + edge + slot, neighbour, mask=live)
    if keep:
        tl.store(positions + edge + slot, start + chosen, mask=live)
    tl.atomic_max(stamp + neighbour, (base + (ranks - 1 - pending) - edge - slot).to(tl.int32), mask=live, sem="relaxed")


@triton.jit(do_not_specialize=["hop"])  # type: ignore[untyped-decorator]
def draw_long_kernel(  # type: ignore[no-untyped-def]
    request,
    counts,
    nodes,
    starts,
    degrees,
    row_ends,
    neighbours,
    raw,
    positions,
    stamp,
    hop,
    ranks,
    pending,
    replace: tl.constexpr,
    chunk: tl.constexpr,
):
    """Any number of neighbours, a row per program. `positions` is also where draws are remembered."""
    begin, end = _hop_rows(counts, hop)
    row = begin + tl.program_id(0).to(tl.int64)
    if row >= end:
        return
    node = tl.load(nodes + row).to(tl.int64)
    start, degree = tl.load(starts + row), tl.load(degrees + row)
    edge = tl.load(row_ends + row)
    take = tl.load(row_ends + row + 1) - edge
    key, base = tl.load(request), tl.load(request + 1)
    if not replace and take < degree:
        floyd_row(key, node, hop, degree, take, positions + edge, chunk)
    lane = tl.arange(0, chunk).to(tl.int64)
    for first in range(0, take, chunk):
        slot = first + lane
        live = slot < take
        if replace:
            chosen = drawn_below(key, slot, node, hop, degree, degree + slot * 0)
        else:
            chosen = tl.load(positions + edge + slot, mask=live & (take < degree), other=0)
            chosen = tl.where(take < degree, chosen, slot)
        neighbour = tl.load(neighbours + start + chosen, mask=live, other=0)
        tl.store(raw + edge + slot, neighbour, mask=live)
        tl.store(positions + edge + slot, start + chosen, mask=live)
        tl.atomic_max(stamp + neighbour, (base + (ranks - 1 - pending) - edge - slot).to(tl.int32), mask=live, sem="relaxed")


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


@triton.jit(do_not_specialize=["hop", "hops", "fanout"])  # type: ignore[untyped-decorator]
def number_kernel(  # type: ignore[no-untyped-def]
    request,
    counts,
    raw,
    nodes,
    starts,
    degrees,
    row_ends,
    indptr,
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
    size: tl.constexpr,
    chunk: tl.constexpr,
):
    """Places for the nodes that hop `hop` found first (or for the seeds, as hop -1), and the rows the next hop will expand."""
    tile = tl.program_id(0)
    if seeds:
        begin = tl.zeros([], tl.int64)
        end = tl.load(request + 3)
        nodes_before = tl.zeros([], tl.int64)
    else:
        first_row, last_row = _hop_rows(counts, hop)
        begin, end = tl.load(row_ends + first_row), tl.load(row_ends + last_row)
        nodes_before = last_row
    tiles = tl.maximum((end - begin + size - 1) // size, 1)
    if tile >= tiles:
        return
    edge = begin + tile.to(tl.int64) * size + tl.arange(0, size)
    there = edge < end
    base, tag = tl.load(request + 1), tl.load(request + 2)
    node = tl.load(raw + edge, mask=there, other=0)
    if seeds:
        new = there
        tl.atomic_max(stamp + node, (base + ranks - 1 - edge).to(tl.int32), mask=there, sem="relaxed")
    else:
        claim = base + (ranks - 1 - pending) - edge
        new = there & (tl.load(stamp + node, mask=there, other=-1).to(tl.int64) == claim)
    numbered = tl.cumsum(new.to(tl.int64), axis=0)
    count = tl.sum(new.to(tl.int64), axis=0)
    tl.atomic_xchg(new_words + tile, (tag << 40) | count, sem="relaxed")
    if not last:
        start = tl.load(indptr + node, mask=new, other=0)
        degree = tl.load(indptr + node + 1, mask=new, other=0) - start
        if fanout < 0:
            take = degree
        elif replace:
            take = tl.where(degree > 0, degree * 0 + fanout, 0)
        else:
            take = tl.minimum(degree, degree * 0 + fanout)
        taken = tl.cumsum(take, axis=0)
        all_taken = tl.sum(take, axis=0)
        tl.atomic_xchg(take_words + tile, (tag << 40) | all_taken, sem="relaxed")
    local = nodes_before + _sum_before(new_words, tile, tag, chunk) + numbered - 1
    tl.store(nodes + local, node, mask=new)
    if not seeds:
        tl.store(stamp + node, (base + ranks - 1 - local).to(tl.int32), mask=new)
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
        tl.store(counts + hop + 1, tl.max(tl.where(there, local, nodes_before - 1), axis=0) + 1)
        if not last:
            tl.store(counts + hops + 2 + hop, edges_before)


@triton.jit(do_not_specialize=["hops"])  # type: ignore[untyped-decorator]
def relabel_kernel(request, counts, row_ends, raw, stamp, indices, hops, ranks, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """The local id of every edge's neighbour."""
    end = tl.load(row_ends + tl.load(counts + hops - 1))
    edge = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    there = edge < end
    base = tl.load(request + 1)
    node = tl.load(raw + edge, mask=there, other=0)
    local = base + ranks - 1 - tl.load(stamp + node, mask=there, other=0).to(tl.int64)
    tl.store(indices + edge, local.to(tl.int32), mask=there)
