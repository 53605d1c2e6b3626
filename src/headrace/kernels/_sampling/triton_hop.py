"""What the kernels that draw a hop share: which rows it expands, and what becomes of the neighbors they take."""

import triton
import triton.language as tl

from headrace.kernels._sampling.triton_draw import tree_word


@triton.jit  # type: ignore[untyped-decorator]
def hop_rows(counts, hop):  # type: ignore[no-untyped-def]
    """The rows that hop `hop` expands: those the hop before added."""
    begin = tl.load(counts + hop - 1, mask=hop > 0, other=0)
    return begin, tl.load(counts + hop)


@triton.jit  # type: ignore[untyped-decorator]
def load_rows(nodes, starts, degrees, row_ends, trees, row, valid, word, disjoint: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of each row its node, the start of its entries in the graph, its degree, its first edge in the sample, how many neighbors it
    takes, its tree and the last word of its Philox counters."""
    node = tl.load(nodes + row, mask=valid, other=0).to(tl.int64)
    start, degree = tl.load(starts + row, mask=valid, other=0), tl.load(degrees + row, mask=valid, other=0)
    edge = tl.load(row_ends + row, mask=valid, other=0)
    take = tl.load(row_ends + row + 1, mask=valid, other=0) - edge
    tree, last_word = row, word + row * 0
    if disjoint:
        tree = tl.load(trees + row, mask=valid, other=0)
        last_word = tree_word(word, tree)
    return node, start, degree, edge, take, tree, last_word


@triton.jit  # type: ignore[untyped-decorator]
def hand_over(  # type: ignore[no-untyped-def]
    neighbors,
    raw,
    positions,
    edge_trees,
    stamp,
    edge,
    source,
    tree,
    live,
    claim,
    keep: tl.constexpr,
    disjoint: tl.constexpr,
):
    """Write the neighbors at positions `source` of the graph as edges `edge` of the sample; each remembers the earliest.

    In disjoint trees a node has a memory in each, which is looked for later: here only the edge's tree is written.
    """
    neighbor = tl.load(neighbors + source, mask=live, other=0)
    tl.store(raw + edge, neighbor, mask=live)
    if keep:
        tl.store(positions + edge, source, mask=live)
    if disjoint:
        tl.store(edge_trees + edge, tree, mask=live)
    else:
        tl.atomic_max(stamp + neighbor, (claim - edge).to(tl.int32), mask=live, sem="relaxed")
