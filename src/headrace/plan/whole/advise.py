"""`advise`: how to train a model on a graph, on a measured machine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from headrace._device import device_of
from headrace.graph import Dataset, Graph
from headrace.graph.reorder import ORDERS
from headrace.graph.reorder.orders import Progress
from headrace.graph.topology.properties import properties
from headrace.plan.machine import Machine
from headrace.plan.probe import probe
from headrace.plan.whole.decide import decide
from headrace.plan.whole.plan import Plan
from headrace.plan.whole.workload import workload_of

_TYPES = (torch.float32, torch.bfloat16)


def advise(
    data: Dataset | Graph,
    model: str | nn.Module | Sequence[int] = "gcn",
    device: str | torch.device = "cpu",
    *,
    epochs: int = 100,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 8,
    conv: str = "gcn",
    dropout: float = 0.5,
    input_dropout: float | None = None,
    dtype: torch.dtype | None = None,
    orders: Sequence[str] = ("first_neighbor", "rabbit"),
    machine: Machine | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Plan:
    """Decide how `model` is best trained on the whole of a graph for `epochs` epochs: a `Plan`.

    This is the decider of GNNAdvisor (OSDI'21, section 7) with every candidate costed: whether to reorder the nodes, in which type
    to compute, whether each layer sums or maps first, whether the first layer's sums are made once, and which kernel sums.

    model: a kind (gcn, gin, sage, gat, gatv2) with `hidden`, `layers` and `heads`, whose other widths are the dataset's; a `GNN`;
        or the widths from the features to the classes, of layers of kind `conv`, which is what a graph without features needs.
    dtype: float32 or bfloat16 if that is decided already; None lets the plan suggest.
    machine: what `probe` measured; None measures the device, which takes a second.

    >>> import headrace as hr
    >>> data = hr.generate.community(nodes=1000, edges=20000, classes=4, features=64)
    >>> plan = hr.plan.advise(data, "sage", hidden=16, machine=hr.plan.probe(repeats=1))
    >>> plan["order of nodes"].chosen
    'as it is'
    """
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, not {epochs}")
    if dtype not in (None, *_TYPES):
        raise ValueError(f"dtype must be torch.float32, torch.bfloat16 or None, not {dtype}")
    if unknown := [name for name in orders if name not in ORDERS]:
        raise ValueError(f"there is no order {unknown[0]!r}: choose among {', '.join(ORDERS)}")
    options = {"hidden": hidden, "layers": layers, "heads": heads, "conv": conv}
    workload = workload_of(data, model, **options, dropout=dropout, input_dropout=input_dropout)  # type: ignore[arg-type]
    graph = data if isinstance(data, Graph) else data.graph
    where = torch.device(device)
    if machine is None:
        machine = probe(device_of(where), threads=threads)
    elif machine.device != where.type:
        raise ValueError(f"machine is of a {machine.device}, the plan is for {where.type}: probe that one")
    figures = properties(graph, workload.dims[0], threads=threads)
    return decide(graph, workload, machine, figures, epochs=epochs, dtype=dtype, orders=orders, progress=progress, threads=threads)
