"""What an encoder adds to the main memory of a run of link prediction."""

from __future__ import annotations

from headrace.train.links.options import LinkOptions

_GRAPH_BYTES = 56  # of an edge while the graph at hand is made of it: its position, its ends, and two entries of the graph
_ROWS_BYTES = 96  # of an edge of a partition while its nodes are encoded, which are numbered then
_NODE_BYTES = 24  # of a node that is at hand: where its neighbors begin, and where a sampler notes its place
_COPIES = 9  # of rows that a layer and its gradient keep, and what a heap that was used for others leaves between them


def encoder_memory(options: LinkOptions, *, nodes: int, train: int, state: int, piece: int, heap: int) -> dict[str, int]:
    """Bytes by what they are for, in addition to a run without an encoder; nothing without one.

    `piece` is the bytes of rows encoded at a time, and `heap` the share that freed tensors take beside those in use.
    """
    if options.encoder == "none":
        return {}
    share = min(1.0, options.buffer / options.partitions) if options.partitions else 1.0
    parts = {"graph at hand": int(_GRAPH_BYTES * train * share**2 + _NODE_BYTES * nodes * share)}
    rows, edges = sampled(options, nodes=int(nodes * share))
    width = max(options.dim, options.hidden)
    moved = rows * 4 * (options.dim + state) + 8 * rows + 4 * edges
    parts["neighbors in flight"] = heap * (options.in_flight + 2) * moved
    parts["a batch's layers"] = heap * _COPIES * rows * 4 * width
    near = 2 * _ROWS_BYTES * train // options.partitions if options.partitions else _GRAPH_BYTES * train
    parts["nodes while encoded"] = _COPIES * piece + near
    if options.storage != "disk" and (options.device == "cpu" or options.storage == "host"):
        parts["encoded rows"] = nodes * 4 * (options.dim + (width if len(options.fanouts) > 1 else 0))
    if options.encoder == "gcn":
        parts["degrees"] = 8 * nodes
    return parts


def sampled(options: LinkOptions, *, nodes: int) -> tuple[int, int]:
    """The most nodes and edges that a batch's sample has, where `nodes` are at hand."""
    new = rows = min(2 * options.batch_size + options.chunks * options.negatives, nodes)
    edges = 0
    for fanout in options.fanouts:
        edges += new * fanout
        new = min(new * fanout, nodes - rows)
        rows += new
    return rows, edges
