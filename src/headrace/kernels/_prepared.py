"""What the rows of one graph need beyond their CSR to be launched in a certain way: built once, never during a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from headrace.kernels.launch import Launch, launch_for


class Rows(Protocol):
    """Anything in compressed rows: a `Graph`, a `Block`. `permutation` is needed only of a reverse."""

    indptr: Tensor
    indices: Tensor
    permutation: Tensor | None


@dataclass(frozen=True, eq=False)
class Prepared:
    """A launch, with what it needs of the rows it is for; and the same of their reverse, for the gradient."""

    launch: Launch
    tensors: tuple[Tensor, ...] = ()
    reverse: Prepared | None = None


def prepare(
    rows: Rows, launch: Launch | None = None, *, width: int = 128, dtype: torch.dtype = torch.float32, reverse: Rows | None = None
) -> Prepared:
    """Make `rows` ready for `launch`, or for the one that `launch_for` chooses for rows of `width` elements.

    `reverse` is prepared too, by its own figures; of a symmetric graph it is the graph itself. Waits for the device: call it once
    per graph (`graph.derived("prepared ...", ...)` keeps it).

    >>> import headrace as hr
    >>> graph = hr.Graph.from_edges([1, 2, 3, 0], [0, 0, 0, 1], 4)
    >>> prepare(graph, Launch("split", group=2)).tensors[0]  # the rows of more than two entries
    tensor([0])
    """
    chosen = launch or chosen_for(rows, width, dtype)
    made = Prepared(chosen, heavy_groups(rows.indptr, chosen.group) if chosen.variant == "split" else ())
    if reverse is None:
        return made
    return replace(made, reverse=made if reverse.indices is rows.indices else prepare(reverse, launch, width=width, dtype=dtype))


def chosen_for(rows: Rows, width: int, dtype: torch.dtype) -> Launch:
    """The router's choice for these rows."""
    degrees = rows.indptr.diff().double()
    if len(degrees) == 0:
        return launch_for(mean_degree=0, width=width, dtype=dtype)
    mean, most, spread = torch.stack([degrees.mean(), degrees.max(), degrees.std(correction=0)]).tolist()
    return launch_for(mean_degree=mean, max_degree=int(most), degree_cv=spread / mean if mean else 0.0, width=width, dtype=dtype)


def heavy_groups(indptr: Tensor, group: int) -> tuple[Tensor, ...]:
    """Rows of more than `group` entries, cut: the rows, the first group of each, and where every group begins and ends."""
    degrees = indptr.diff()
    heavy = (degrees > group).nonzero().flatten()
    counts = (degrees[heavy] + group - 1) // group
    firsts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    owner = torch.repeat_interleave(torch.arange(len(heavy), device=indptr.device), counts)
    begins = indptr[heavy][owner] + (torch.arange(len(owner), device=indptr.device) - firsts[owner]) * group
    return heavy, firsts, begins, torch.minimum(begins + group, indptr[heavy + 1][owner])
