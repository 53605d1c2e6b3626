"""Where the nodes of disjoint trees remember who saw them first: cells of a hash table of (node, tree). See triton_sample.py."""

import triton
import triton.language as tl

from headrace.kernels._sampling.triton_hop import hop_rows

_TREE_BITS = tl.constexpr(24)
_SPREAD = tl.constexpr(0x9E3779B97F4A7C15 - 2**64)  # 2**64 / the golden ratio: Knuth's multiplicative hashing


@triton.jit(do_not_specialize=["hop", "bits"])  # type: ignore[untyped-decorator]
def place_kernel(  # type: ignore[no-untyped-def]
    request,
    counts,
    row_ends,
    ids,
    trees,
    table,
    places,
    stamp,
    hop,
    bits,
    ranks,
    pending,
    of: tl.constexpr,
    size: tl.constexpr,
):
    """Find or claim the cell of each (node, tree) in a table of 2 ** `bits`, and stamp it with the rank of who asks.

    of: "seeds" have their index for tree and for rank; "nodes" are those of the sample before hop `hop`, ranked by local id;
        "edges" are the neighbors that hop `hop` drew, and "all edges" also those of the hops before: they claim, and keep
        the cell they found in `places`.
    """
    begin, rank = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    if of == "seeds":
        end = tl.load(request + 3)
    elif of == "nodes":
        end = tl.load(counts + hop)
    else:
        first_row, last_row = hop_rows(counts, hop)
        end = tl.load(row_ends + last_row)
        if of == "edges":
            begin = tl.load(row_ends + first_row)
        rank += pending
    item = begin + tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    valid = item < end
    node = tl.load(ids + item, mask=valid, other=0).to(tl.int64)
    if of == "seeds":
        tree = item
    else:
        tree = tl.load(trees + item, mask=valid, other=0).to(tl.int64)
    key = tl.where(valid, (node << _TREE_BITS) | tree, -1)  # -1 is an empty cell, which -1 leaves empty
    last = ((tl.zeros_like(key) + 1) << bits) - 1
    cell = ((key * _SPREAD) >> 32) & last
    empty = tl.zeros_like(key) - 1
    old = tl.atomic_cas(table + cell, empty, key, sem="relaxed")
    while tl.max((valid & (old != empty) & (old != key)).to(tl.int32), axis=0) > 0:
        cell = tl.where((old != empty) & (old != key), (cell + 1) & last, cell)
        old = tl.atomic_cas(table + cell, empty, key, sem="relaxed")
    tl.atomic_max(stamp + cell, (tl.load(request + 1) + (ranks - 1) - rank - item).to(tl.int32), mask=valid, sem="relaxed")
    if of == "edges" or of == "all edges":
        tl.store(places + item, cell.to(tl.int32), mask=valid)
