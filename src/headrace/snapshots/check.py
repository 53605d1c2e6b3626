"""`check_cell`: the parts of a cell do what the cell does, and its sums read what it says they read."""

from __future__ import annotations

import torch

from headrace.graph import Graph
from headrace.nn.cells import Cell
from headrace.nn.cells.cell import State
from headrace.nn.neighbor_sum import counting
from headrace.snapshots.rows import block_diagonal


def check_cell(cell: Cell, tolerance: float = 1e-4) -> None:
    """Run the parts of a cell against the cell itself, and its sums against those it declares; ValueError where they differ."""
    generator = torch.Generator().manual_seed(0)
    nodes = max(cell.in_channels, 8)
    graphs = [_random_graph(nodes, generator) for _ in range(2)]
    rows = [torch.randn(nodes, cell.in_channels, generator=generator) for _ in graphs]
    kind = type(cell).__name__
    training = cell.training
    cell.eval()
    try:
        with torch.no_grad():
            plain: State | None = None
            for x, graph in zip(rows, graphs, strict=True):
                plain = cell(x, graph, plain)
            whole = block_diagonal(graphs)
            with counting() as kept:
                fixed = cell.fixed(torch.cat(rows), whole)
            with counting() as ahead:
                ready = cell.ahead(torch.cat(rows), fixed, whole, [nodes, nodes])
            state = cell.start(nodes, rows[0])
            with counting() as chained:
                for part, graph in zip(ready, graphs, strict=True):
                    state = cell.step(part, graph, state)
    finally:
        cell.train(training)
    sums = [op for op in cell.operators if op.kind == "graph"]
    terms = max(getattr(cell, "K", 2) - 1, 0)  # sums of a Chebyshev filter, which is one operator
    for found, declared, what in (
        (kept.sums, sum(op.can_be_kept for op in sums), "read x alone"),
        (ahead.sums, sum(op.can_run_ahead and not op.can_be_kept for op in sums), "read x and weights"),
        (chained.sums / 2, sum(not op.can_run_ahead for op in sums), "read state"),
    ):
        if found != declared * terms:
            raise ValueError(
                f"{kind} declares {declared} sums that {what}, and makes {found:g} of {terms} terms: mend its operators"
            )
    assert plain is not None
    difference = float((cell.rows(plain) - cell.rows(state)).abs().max())
    if difference > tolerance:
        raise ValueError(
            f"{kind} gives other rows by its parts fixed, ahead and step than by itself (up to {difference:.2g} apart): "
            "a part that reads state must be in step"
        )


def _random_graph(nodes: int, generator: torch.Generator) -> Graph:
    src, dst = torch.randint(0, nodes, (2, 4 * nodes), generator=generator)
    return Graph.from_edges(src, dst, nodes)
