"""Linear sums over neighbors that recurrent cells are made of: one name for a sum, whatever holds the rows.

A sum is a matrix that follows from the graph alone: GCN's normalized adjacency, the scaled Laplacian of Chebyshev filters, the
mean over edges in or out. `where` is a `Graph`, or anything with a method `neighbor_sum` (such as rows split over ranks).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from headrace.graph import Graph
from headrace.kernels import aggregate
from headrace.nn.convs.gcn import graph_norm, row_sums, targets
from headrace.nn.first_sum import Factors
from headrace.nn.structure import over

Kind = Literal["gcn", "laplacian", "mean_in", "mean_out"]
KINDS: tuple[Kind, ...] = ("gcn", "laplacian", "mean_in", "mean_out")


class Rows(Protocol):
    """Rows that know how to sum over their neighbors."""

    def neighbor_sum(self, kind: Kind, x: Tensor) -> Tensor: ...


Where = Graph | Rows
T = TypeVar("T")


class Asked(NamedTuple):
    """A sum that a chain of operators waits for: of x, by `work`. `free`: it reads features alone, and itself waits for nothing."""

    x: Tensor
    work: Callable[[Tensor], Tensor]
    free: bool = False


Steps = Generator[Asked, Tensor, T]  # operators that stop at each sum, are sent what it gives, and return what they make


class Count:
    """How many sums were made, and over how many columns."""

    def __init__(self) -> None:
        self.sums = self.columns = 0


_counting = threading.local()
Part = tuple[Literal["graph", "wire"], Callable[[Tensor], Tensor]]  # of a sum: what it waits for, and what it does
Between = Callable[..., Tensor]


@contextmanager
def between(around: Between) -> Iterator[None]:
    """Let `around(x, *parts)` do the sums that this thread makes inside: each part when it may, of what the one before it gave.

    A part is "graph", or "wire" where it waits for rows of other ranks.
    """
    before = getattr(_counting, "around", None)
    _counting.around = around
    try:
        yield
    finally:
        _counting.around = before


@contextmanager
def leaving_room(programs: int) -> Iterator[None]:
    """Sums that this thread makes inside on a GPU take so many programs at most, their gradients too (`kernels.Launch`)."""
    before = getattr(_counting, "programs", 0)
    _counting.programs = programs
    try:
        yield
    finally:
        _counting.programs = before


@contextmanager
def counting() -> Iterator[Count]:
    """Count the sums that this thread makes inside."""
    before, count = getattr(_counting, "count", None), Count()
    _counting.count = count
    try:
        yield count
    finally:
        _counting.count = before
        if before is not None:
            before.sums, before.columns = before.sums + count.sums, before.columns + count.columns


def neighbor_sum(kind: Kind, x: Tensor, where: Where) -> Tensor:  # [num_nodes, d] -> [num_nodes, d]
    """The sum of this kind over the neighbors of every node.

    >>> import headrace as hr, torch
    >>> from headrace.nn.neighbor_sum import neighbor_sum
    >>> neighbor_sum("mean_in", torch.tensor([[1.0], [3.0], [0.0]]), hr.Graph.from_edges([0, 1], [2, 2])).flatten().tolist()
    [0.0, 0.0, 2.0]
    """
    count = getattr(_counting, "count", None)
    if count is not None:
        count.sums, count.columns = count.sums + 1, count.columns + x.shape[1]
    if not isinstance(where, Graph):
        return where.neighbor_sum(kind, x)
    return in_turn(x, ("graph", lambda rows: _made(kind, rows, where)))


def in_turn(x: Tensor, *parts: Part) -> Tensor:
    """The parts of a sum, one after the other, by what is `between` in this thread."""
    around: Between | None = getattr(_counting, "around", None)
    return at_once(x, *parts) if around is None else around(x, *parts)


def at_once(x: Tensor, *parts: Part) -> Tensor:
    """The parts of a sum, one after the other: what is done where nothing else is `between`."""
    for _, work in parts:
        x = work(x)
    return x


def _made(kind: Kind, x: Tensor, where: Graph) -> Tensor:
    rows, factors = matrix_of(kind, where, torch.float64 if x.dtype == torch.float64 else torch.float32)
    told: dict[str, Any] = over(rows, x, weighted=factors.weight is not None, programs=getattr(_counting, "programs", 0))
    out = aggregate(x, **told, weight=factors.weight, scale=factors.scale, row_scale=factors.row_scale)
    return out if factors.own is None else torch.addcmul(out, x, factors.own.to(out.dtype).unsqueeze(1))


def matrix_of(kind: Kind, graph: Graph, dtype: torch.dtype) -> tuple[Graph, Factors]:
    """The rows that a sum runs over, and its factors. Made once per graph and kept."""
    if kind == "gcn":
        return graph, graph_norm(graph, 1.0, dtype)
    if kind == "laplacian":
        return graph, graph.derived(f"laplacian {dtype}", lambda: _laplacian(graph, dtype))
    rows = graph if kind == "mean_in" else graph.reverse()
    return rows, rows.derived(f"mean {dtype}", lambda: Factors(row_scale=rows.degrees().clamp_min(1).to(dtype).reciprocal()))


def _laplacian(graph: Graph, dtype: torch.dtype) -> Factors:
    """2 L / lambda - I with lambda = 2, L the symmetric normalized Laplacian by out-degree, loops left out (PyG's ChebConv)."""
    target, source = targets(graph), graph.indices
    weight = torch.ones(graph.num_edges, dtype=dtype, device=graph.device) if graph.weight is None else graph.weight.to(dtype)
    weight = torch.where(source == target, 0, weight)
    if graph.device.type == "cpu":
        degree = torch.zeros(graph.num_nodes, dtype=dtype).index_add_(0, source.long(), weight)
    else:  # in an order, as `row_sums` has it
        out = graph.reverse()
        assert out.permutation is not None
        degree = row_sums(out, weight[out.permutation])
    root = torch.where(degree > 0, degree.rsqrt(), 0)
    return Factors(weight=-(root[source.long()] * weight * root[target.long()]))


def asking(kind: Kind, x: Tensor, where: Where) -> Steps[Tensor]:
    """The sum of this kind, asked for."""
    return (yield Asked(x, partial(neighbor_sum, kind, where=where)))


def completed(steps: Steps[T]) -> T:
    """What the steps return, each sum made when it is asked for."""
    try:
        asked = next(steps)
        while True:
            asked = steps.send(asked.work(asked.x))
    except StopIteration as ended:
        made: T = ended.value
        return made


def chebyshev(x: Tensor, where: Where, terms: int) -> Tensor:  # [n, d] -> [n, terms * d]
    """The first Chebyshev polynomials of the scaled Laplacian, applied to x: terms - 1 sums."""
    return completed(asking_chebyshev(x, where, terms))


def asking_chebyshev(x: Tensor, where: Where, terms: int) -> Steps[Tensor]:
    """The same, with its sums asked for."""
    basis = [x]
    for number in range(1, terms):
        summed = yield from asking("laplacian", basis[-1], where)
        basis.append(summed if number == 1 else 2 * summed - basis[-2])
    return torch.cat(basis, dim=1) if terms > 1 else x


def relations(x: Tensor, where: Where) -> Tensor:  # [n, d] -> [n, 3 d]
    """The own row, and the means over edges in and out: what a relational layer maps."""
    return completed(asking_relations(x, where))


def asking_relations(x: Tensor, where: Where) -> Steps[Tensor]:
    """The same, with its sums asked for."""
    means = [(yield from asking("mean_in", x, where)), (yield from asking("mean_out", x, where))]
    return torch.cat([x, *means], dim=1)
