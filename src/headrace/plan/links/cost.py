"""What an epoch of link prediction moves: pure functions of the sizes of a graph, its rows and its buffer.

Rows and their state are S = nodes * row bytes, in p partitions of which an order loads L and writes back as many; edges are read
once. So a disk moves 2 L S / p + 12 E bytes an epoch (Mohoney et al., "Marius", OSDI 2021, section 4) if the buffer is kept from
one epoch to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.pipeline.orders import ORDERS, best_swaps, beta_swaps

EDGE_BYTES = 12  # of a triple of 32-bit numbers


@dataclass(frozen=True)
class Traffic:
    """Bytes of an epoch, read and written."""

    read: float
    written: float

    @property
    def bytes(self) -> float:
        return self.read + self.written

    def seconds(self, read_rate: float, write_rate: float | None = None) -> float:
        """At so many bytes a second, reads beside writes; where both share one rate, give each its part."""
        return max(self.read / read_rate, self.written / (write_rate or read_rate))


def order_loads(order: str, partitions: int, buffer: int) -> int:
    """Partitions that an epoch loads, the buffer's first fill not counted.

    COMET with l = 2 p / c groups, two of them in the buffer, loads as BETA(l, 2) does, p / l partitions at a time.

    >>> [order_loads(name, 16, 8) for name in ("best", "beta", "comet", "hilbert")]
    [16, 17, 20, 36]
    """
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    if order == "comet" and 2 <= buffer < partitions and buffer % 2 == 0 and 2 * partitions % buffer == 0:
        groups = 2 * partitions // buffer
        if partitions % groups == 0:
            return beta_swaps(groups, 2) * (partitions // groups)
    if order == "beta":
        return beta_swaps(partitions, buffer)
    if order == "best":
        return best_swaps(partitions, buffer)
    return ORDERS[order](partitions, buffer).swaps


def disk_traffic(table_bytes: float, edges: int, *, partitions: int, loads: int) -> Traffic:
    """Bytes of an epoch with rows on disk: `loads` partitions in and out, and the edges.

    >>> round(disk_traffic(86_054_151 * 800, 0, partitions=16, loads=17).bytes / 1e9, 1)
    146.3
    """
    moved = loads * table_bytes / partitions
    return Traffic(moved + EDGE_BYTES * edges, moved)


def link_traffic(edges: int, bytes_per_row: int, *, batch_size: int, batch_rows: int) -> Traffic:
    """Bytes of an epoch between main memory and a GPU, at the most, where rows are sent batch by batch and updates come back.

    >>> round(link_traffic(304_727_650, 800, batch_size=50_000, batch_rows=110_000).read / 1e9)
    536
    """
    one_way = -(-edges // batch_size) * batch_rows * bytes_per_row
    return Traffic(float(one_way), float(one_way))
