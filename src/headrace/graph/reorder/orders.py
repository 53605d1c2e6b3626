"""The orders: from communities, from one neighbor, from degrees, and from two other packages."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_count
from headrace.graph.graph import Graph

Progress = Callable[[int, int], None]
_NODES_PER_PART = 1024  # a part's rows of 128 floats fit into a second-level cache


def rabbit(graph: Graph, *, progress: Progress | None = None, threads: int | None = None) -> Tensor:  # -> [num_nodes]
    """Communities one after the other, each ordered by its own communities (Arai et al., "Rabbit Order", IPDPS'16).

    Nodes are visited from the least to the largest degree. Each is merged, with all that was merged into it before, into the
    neighboring community that gains most modularity by it, the one of the least id among equals; one that gains none stays a
    root. The trees of merges, walked depth first, are the order: roots by id, nodes without edges last. Edges count in both
    directions, repeated ones as often as they stand; self loops and weights do not.

    The published code decides many nodes at once, in an order that races decide. Here one follows the other: the result
    is a function of the graph, and takes one processor: 12 to 16 s of its time for 123.7 M edges. `progress(done, nodes)` is
    called now and then; Ctrl-C stops the work.

    >>> import headrace as hr
    >>> two_triangles = hr.Graph.from_edges([0, 2, 4, 1, 3, 5], [2, 4, 0, 3, 5, 1], undirected=True)
    >>> hr.reorder.rabbit(two_triangles).tolist()
    [4, 2, 0, 5, 3, 1]
    """
    host, workers = graph.to("cpu"), thread_count(threads)
    indptr, indices = None, None
    if not host.is_symmetric(threads=threads):
        indptr, indices, _ = _native.transpose_csr(host.indptr, host.indices, host.num_nodes, positions=False, threads=workers)
    return torch.from_numpy(_native.rabbit_order(host.indptr, host.indices, indptr, indices, progress=progress, threads=workers))


def first_neighbor(graph: Graph, *, threads: int | None = None) -> Tensor:  # -> [num_nodes]
    """Nodes by the least of their in-neighbors' ids, those of one such neighbor as they stood; nodes without any last.

    The cheapest order that has any locality, and the one that others must beat.

    >>> import headrace as hr
    >>> hr.reorder.first_neighbor(hr.Graph.from_edges([5, 1, 5, 1], [0, 2, 3, 4])).tolist()
    [2, 4, 0, 3, 1, 5]
    """
    host = graph.to("cpu")
    least = _native.least_columns(host.indptr, host.indices, thread_count(threads))
    return torch.sort(torch.from_numpy(least), stable=True).indices


def degree(graph: Graph) -> Tensor:  # -> [num_nodes]
    """Nodes by how many rows read them (their out-degree), most first: what is read most lies together.

    It helps where a cache holds the hubs' rows and little else; it breaks up communities whose ids are together.

    >>> import headrace as hr
    >>> hr.reorder.degree(hr.Graph.from_edges([2, 2, 1], [0, 1, 0])).tolist()
    [2, 1, 0]
    """
    host = graph.to("cpu")
    host.validate()
    return torch.sort(torch.bincount(host.indices, minlength=host.num_nodes), descending=True, stable=True).indices


def rcm(graph: Graph) -> Tensor:  # -> [num_nodes]
    """Reverse Cuthill-McKee, as scipy computes it: a narrow band, for meshes and roads.

    >>> import headrace as hr
    >>> path = hr.Graph.from_edges([0, 3, 1], [3, 1, 2], undirected=True)
    >>> hr.reorder.rcm(path).tolist()                                                  # doctest: +SKIP
    [2, 1, 3, 0]
    """
    sparse = _extra("scipy.sparse", "scipy", "the order 'rcm'")
    csgraph = _extra("scipy.sparse.csgraph", "scipy", "the order 'rcm'")
    host = graph.to("cpu")
    if graph.num_edges > torch.iinfo(torch.int32).max:
        raise ValueError(f"rcm takes graphs of up to 2**31 - 1 edges, and this one has {graph.num_edges}: use rabbit")
    host.validate()
    ones = torch.ones(graph.num_edges, dtype=torch.int8).numpy()
    shape = (graph.num_nodes, graph.num_nodes)
    matrix = sparse.csr_matrix((ones, host.indices.numpy(), host.indptr.numpy()), shape=shape)
    if graph.num_nodes == 0:
        return torch.empty(0, dtype=torch.int64)
    return torch.from_numpy(csgraph.reverse_cuthill_mckee(matrix, symmetric_mode=graph.is_symmetric()).astype("int64"))


def metis(graph: Graph, *, parts: int | None = None, threads: int | None = None) -> Tensor:  # -> [num_nodes]
    """The parts of METIS one after the other, nodes of one part as they stood; parts of about 1,024 nodes unless told otherwise."""
    if parts is None:
        parts = max(1, -(-graph.num_nodes // _NODES_PER_PART))
    return torch.sort(metis_parts(graph, parts, what="the order 'metis'", threads=threads), stable=True).indices


def metis_parts(graph: Graph, parts: int, *, what: str, threads: int | None = None) -> Tensor:  # -> [num_nodes]
    """The part of each node that METIS finds: few edges between parts of about one size. `what` needs it, if pymetis is missing."""
    pymetis = _extra("pymetis", "pymetis", what)
    if parts < 1:
        raise ValueError(f"parts must be at least 1, not {parts}")
    if parts == 1 or graph.num_edges == 0:
        return torch.arange(graph.num_nodes) * parts // max(1, graph.num_nodes)
    source, target = graph.to("cpu").edge_index()
    both = Graph.from_edges(
        source, target, graph.num_nodes, undirected=True, deduplicate=True, self_loops="drop", threads=threads
    )  # METIS reads undirected graphs without loops
    return torch.as_tensor(pymetis.part_graph(parts, xadj=both.indptr.numpy(), adjncy=both.indices.numpy())[1])


ORDERS: Mapping[str, Callable[[Graph], Tensor]] = {
    "rabbit": rabbit,
    "first_neighbor": first_neighbor,
    "degree": degree,
    "rcm": rcm,
    "metis": metis,
}


def order_by_name(graph: Graph, name: str, *, progress: Progress | None = None, threads: int | None = None) -> Tensor:
    """The order that `name` names among `ORDERS`."""
    if name not in ORDERS:
        raise ValueError(f"there is no order {name!r}: choose one of {', '.join(ORDERS)} or auto, or give a permutation")
    if name == "rabbit":
        return rabbit(graph, progress=progress, threads=threads)
    if name == "first_neighbor":
        return first_neighbor(graph, threads=threads)
    return ORDERS[name](graph)


def _extra(module: str, package: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f"{what} needs {package}: pip install {package}, or headrace[reorder]") from None
