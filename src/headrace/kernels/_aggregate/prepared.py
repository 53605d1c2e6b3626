"""What the rows of one graph need beyond their CSR to be launched in a certain way: built once, never during a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from headrace.kernels._aggregate.launch import Launch, Table, launch_for
from headrace.kernels._aggregate.tuned import tuned


class Rows(Protocol):
    """Anything in compressed rows: a `Graph`, a `Block`. `permutation` is needed only of a reverse."""

    indptr: Tensor
    indices: Tensor
    permutation: Tensor | None


@dataclass(frozen=True, eq=False)
class Prepared:
    """A launch, with what it needs of the rows it is for; and the same of their reverse, for the gradient."""

    launch: Launch
    rows: int
    entries: int
    tensors: tuple[Tensor, ...] = ()
    reverse: Prepared | None = None


def prepare(
    rows: Rows,
    launch: Launch | None = None,
    *,
    width: int = 128,
    dtype: torch.dtype = torch.float32,
    rho_w: float | None = None,
    table: Table | None = None,
    reverse: Rows | None = None,
    programs: int | None = None,
) -> Prepared:
    """Make `rows` ready for `launch`, or for the one that `launch_for` chooses for rows of `width` elements.

    `rho_w`, the reuse within windows of 16 rows, is by default measured on a sample of them; `table` is by default what `tune`
    has measured on the device, if it has. `programs` is the launch's bound, in place of what it has. `reverse` is prepared too, by
    its own figures; of a symmetric graph it is the graph itself. Waits for the device: call it once per graph
    (`graph.derived("prepared ...", ...)` keeps it).

    >>> import headrace as hr
    >>> graph = hr.Graph.from_edges([1, 2, 3, 0], [0, 0, 0, 1], 4)
    >>> prepare(graph, Launch("split", group=2)).tensors[0]  # the rows of more than two entries
    tensor([0])
    """
    chosen = launch or _chosen(rows, width, dtype, rho_w, tuned(rows.indptr.device) if table is None else table)
    if programs is not None:
        chosen = replace(chosen, programs=programs)
    prepared = Prepared(chosen, max(len(rows.indptr) - 1, 0), len(rows.indices), _needed(rows, chosen))
    if reverse is None:
        return prepared
    if reverse.indices is rows.indices:
        return replace(prepared, reverse=prepared)
    how: dict[str, Any] = {"width": width, "dtype": dtype, "rho_w": rho_w, "table": table, "programs": programs}
    return replace(prepared, reverse=prepare(reverse, launch, **how))


def _needed(rows: Rows, launch: Launch) -> tuple[Tensor, ...]:
    if launch.variant == "split":
        return heavy_groups(rows.indptr, launch.group)
    return windows(rows.indptr, rows.indices, launch.window) if launch.variant == "window" else ()


def _chosen(rows: Rows, width: int, dtype: torch.dtype, rho_w: float | None, table: Table) -> Launch:
    degrees = rows.indptr.diff().double()
    if len(degrees) == 0:
        return launch_for(mean_degree=0, width=width, dtype=dtype, table=table)
    mean, most, spread = torch.stack([degrees.mean(), degrees.max(), degrees.std(correction=0)]).tolist()
    cv = spread / mean if mean else 0.0
    rho_w = reuse_in_windows(rows.indptr, rows.indices, 16) if rho_w is None else rho_w
    return launch_for(
        mean_degree=mean,
        max_degree=int(most),
        degree_cv=cv,
        width=width,
        dtype=dtype,
        rho_w=rho_w,
        rows=len(degrees),
        table=table,
    )


def reuse_in_windows(indptr: Tensor, indices: Tensor, window: int, *, sample: int = 256) -> float:
    """Entries over distinct neighbors, in `sample` windows of rows spread evenly: how often a fetched row would serve."""
    count = (len(indptr) - 1) // window
    if count < 1:
        return 1.0
    chosen = torch.linspace(0, count - 1, min(count, sample), dtype=torch.float64, device=indptr.device).long()
    begins, ends = indptr[chosen * window], indptr[(chosen + 1) * window]
    number = torch.repeat_interleave(torch.arange(len(chosen), device=indptr.device), ends - begins)
    firsts = (ends - begins).cumsum(0) - (ends - begins)
    entry = begins[number] + torch.arange(len(number), device=indptr.device) - firsts[number]
    columns = indices[entry].long()
    distinct = torch.unique(number * (int(columns.max()) + 1) + columns) if len(columns) else columns
    return len(columns) / max(len(distinct), 1) if len(columns) else 1.0


def heavy_groups(indptr: Tensor, group: int) -> tuple[Tensor, ...]:
    """Rows of more than `group` entries, cut: the rows, the first group of each, and where every group begins and ends."""
    degrees = indptr.diff()
    heavy = (degrees > group).nonzero().flatten()
    counts = (degrees[heavy] + group - 1) // group
    firsts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    owner = torch.repeat_interleave(torch.arange(len(heavy), device=indptr.device), counts)
    begins = indptr[heavy][owner] + (torch.arange(len(owner), device=indptr.device) - firsts[owner]) * group
    return heavy, firsts, begins, torch.minimum(begins + group, indptr[heavy + 1][owner])


def windows(indptr: Tensor, indices: Tensor, window: int) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct neighbors of every `window` rows: where each window begins, the neighbors, and a bit per row that has it.

    An edge that comes several times is several neighbors, each with the bits that are left.
    """
    begin, end = (int(indptr[0]), int(indptr[-1])) if len(indptr) else (0, 0)
    count = -(-max(len(indptr) - 1, 0) // window)
    columns = indices[begin:end].long()
    row = torch.repeat_interleave(torch.arange(max(len(indptr) - 1, 0), device=indptr.device), indptr.diff())
    most = int(columns.max()) + 1 if len(columns) else 1
    edge, _ = torch.sort(((row // window) * most + columns) * window + row % window)  # by window, neighbor, row
    key, bit = edge // window, torch.bitwise_left_shift(torch.ones_like(edge), edge % window)
    new = torch.ones_like(edge, dtype=torch.bool)
    new[1:] = edge[1:] != edge[:-1]
    if not bool(new.all()):  # bring the first, the second, ... of repeated edges together
        place = torch.arange(len(edge), device=edge.device)
        repeat = place - torch.where(new, place, 0).cummax(0).values
        order = torch.sort(repeat, stable=True).indices
        order = order[torch.sort(key[order], stable=True).indices]
        key, bit, repeat = key[order], bit[order], repeat[order]
        key_or_repeat = (key[1:] != key[:-1]) | (repeat[1:] != repeat[:-1])
    else:
        key_or_repeat = key[1:] != key[:-1]
    first = torch.ones_like(key, dtype=torch.bool)
    first[1:] = key_or_repeat
    number = first.cumsum(0) - 1
    bits = torch.zeros(int(first.sum()), dtype=torch.int64, device=key.device).index_add_(0, number, bit)
    distinct = key[first]
    begins = torch.searchsorted(distinct // most, torch.arange(count + 1, device=key.device))
    return begins, (distinct % most).to(indices.dtype), bits.to(torch.int32)
