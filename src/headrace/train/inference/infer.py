"""`infer`: a model's rows for all nodes over all neighbors, layer by layer.

A layer is computed for every node before the next one begins, so a node's neighbors are read once per layer, where a batch of
whole neighborhoods would compute them again for every seed. Memory is the table before and the table after a layer, and one
range of rows; a table that is larger than `memory` lies in a temporary file.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace._arrays import as_ids, first_outside
from headrace.graph import Dataset, Graph
from headrace.kernels import gather
from headrace.sample import Block, NeighborSampler

_RANGE_BYTES = 256 << 20  # of rows computed at a time
_SEEDS = 16_384  # of the last layer, computed at a time


def infer(
    model: nn.Module,
    data: Dataset,
    nodes: Any = None,
    *,
    memory: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """The model's rows of `nodes` (all by default), from all neighbors.  # -> [nodes, out]

    `model.layers` must be the model: `x = layer(x, block)` from the first to the last, as in `headrace.nn.GNN`. It is run as in
    evaluation: no dropout, norms as learnt. `memory` (bytes, by default half of what the machine has) bounds the tables held in
    memory. `progress` is told (done, of how many) rows. A model on a GPU is run there if graph and tables fit, else on the CPU.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=100, edges=600, classes=3, features=8)
    >>> hr.train.infer(hr.nn.GNN(8, 16, 3, layers=2), data).shape
    torch.Size([100, 3])
    """
    layers = layers_of(model)
    if layers is None:
        raise TypeError(
            f"{type(model).__name__} has no `layers`: exact inference calls them one after the other as layer(x, block)"
        )
    if data.x is None:
        raise ValueError("this dataset has no features")
    wanted = None if nodes is None else as_ids(nodes, "nodes", dtype=torch.int64)
    if wanted is not None and len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < data.num_nodes:
        at = first_outside(wanted, 0, data.num_nodes)
        raise IndexError(f"nodes[{at}] is {int(wanted[at])}: the graph has nodes 0 to {data.num_nodes - 1}")
    limit = memory if memory is not None else _half_of_memory()
    # A sampled block has no edge weights: with them, the last layer too is computed for all.
    few = wanted is not None and 2 * len(wanted) < data.num_nodes and data.graph.weight is None
    total, done = data.num_nodes * (len(layers) - 1) + (len(wanted) if wanted is not None and few else data.num_nodes), 0

    def tell(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(done, total)

    def walk(model: nn.Module, x: Tensor, graph: Graph) -> Tensor:
        layers = layers_of(model) or []
        with evaluating(model), torch.no_grad():
            for number, layer in enumerate(layers):
                last = number == len(layers) - 1
                if last and wanted is not None and few:
                    return _some(layer, x, graph, wanted, tell).cpu()
                x = _all(layer, x, graph, limit, tell)
        return (x if wanted is None else gather(x, wanted)).cpu()

    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if device.type == "cpu":
        return walk(model, data.x, data.graph)
    try:
        return walk(model, data.x.to(device), data.graph.derived(f"on {device}", lambda: data.graph.to(device)))
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        done = 0
    return walk(copy.deepcopy(model).cpu(), data.x, data.graph)


def layers_of(model: nn.Module) -> list[nn.Module] | None:
    """The layers that a model is made of, if it says so."""
    layers: Any = getattr(model, "layers", None)
    return list(layers) if isinstance(layers, (nn.ModuleList, nn.Sequential, list, tuple)) and len(layers) else None


def _all(layer: nn.Module, x: Tensor, graph: Graph, limit: int, tell: Callable[[int], None]) -> Tensor:
    """The layer for every node."""
    nodes = graph.num_nodes
    in_place = getattr(layer, "reads_ids", False)  # a range of rows costs only its own part: sums come before products
    step = nodes
    if in_place and nodes:
        probe: Tensor = layer(x, graph.rows(0, 1))
        width = probe.shape[1] + x.shape[1]
        if 4 * nodes * width > _RANGE_BYTES:
            step = max(_RANGE_BYTES // (4 * width), 1)
    if step >= nodes:
        out: Tensor = layer(x, graph)
        tell(nodes)
        return out
    on_gpu = probe.is_cuda
    table = probe.new_empty(nodes, probe.shape[1]) if on_gpu else _table(nodes, probe.shape[1], probe.dtype, limit)
    for begin in range(0, nodes, step):
        end = min(begin + step, nodes)
        table[begin:end] = layer(x, graph.rows(begin, end))
        tell(end - begin)
    return table


def _some(layer: nn.Module, x: Tensor, graph: Graph, nodes: Tensor, tell: Callable[[int], None]) -> Tensor:
    """The layer for some nodes: their neighbors, all of them, a range of nodes at a time."""
    sampler = NeighborSampler(graph, [-1])
    nodes = nodes.to(x.device)
    parts = []
    for begin in range(0, len(nodes), _SEEDS):
        seeds = nodes[begin : begin + _SEEDS]
        unique, place = torch.unique(seeds, return_inverse=True)  # a sample lists a seed that is given twice only once
        sample = sampler.sample(unique)
        block = sample.blocks[0]
        conv = getattr(layer, "conv", layer)
        degree = gather(graph.degrees(loops=False), sample.nodes) if getattr(conv, "wants_degree", False) else None
        block = Block(block.indptr, block.indices, block.num_src, degree)
        if getattr(layer, "reads_ids", False):
            rows = layer(x, block, ids=sample.nodes)
        else:
            rows = layer(gather(x, sample.nodes), block)
        parts.append(rows[place])
        tell(len(seeds))
    return torch.cat(parts) if parts else layer(x, graph.rows(0, 0))


def _table(rows: int, width: int, dtype: torch.dtype, limit: int) -> Tensor:
    table = torch.empty(0, dtype=dtype)
    size = rows * width * table.element_size()
    if size <= limit:
        return torch.empty(rows, width, dtype=dtype)
    with tempfile.TemporaryFile(prefix="headrace-") as file:  # it has no name, and is gone when the last view of it is
        try:
            os.posix_fallocate(file.fileno(), 0, size)  # a page that finds no room later would end the process
        except OSError as error:
            place, room = tempfile.gettempdir(), f"{size / 2**30:.2f} GiB"
            raise OSError(error.errno, f"a table of {room} does not fit in {place} ({error.strerror}): set TMPDIR") from error
        return torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="r+", shape=(size,))).view(dtype).view(rows, width)


def _half_of_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError, AttributeError):
        return 4 << 30


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within, the model is as in evaluation; afterwards every part of it is as it was."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
