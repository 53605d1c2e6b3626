"""Where entries of a server's rows stand in the CSR of the whole graph: what dropout of their coefficients is a function of."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.cluster.elastic.neighborhood import Neighborhood


def row_begins(at: Neighborhood) -> Tensor:
    """At which entry of the whole graph each own row begins. Collective.  # -> [own]

    No server has an array of all nodes: ids are cut into a range for each server, which is told the degrees of its range, adds
    them up and answers. A server sends 16 bytes for each own node and gets 8.
    """
    size = max(-(-at.part.num_nodes // at.servers), 1)
    low = at.server * size
    home = at.ids // size
    facts = torch.stack([at.ids, at.part.indptr.diff()], dim=1)
    asked = at.sent("positions", [facts[home == server] for server in range(at.servers)])
    degrees = torch.zeros(min(max(at.part.num_nodes - low, 0), size), dtype=torch.int64)
    for ids, degree in (part.unbind(1) for part in asked):
        degrees[ids - low] = degree
    totals = at.sent("positions", [degrees.sum().view(1)] * at.servers)
    before = sum(int(total) for total in totals[: at.server])
    begins = before + degrees.cumsum(0) - degrees
    answers = at.sent("positions", [begins[part[:, 0] - low] for part in asked])
    found = torch.empty(at.num_own, dtype=torch.int64)
    for server, answer in enumerate(answers):
        found[home == server] = answer
    return found


def positions_back(at: Neighborhood, begins: Tensor) -> Tensor:
    """Where the entries of `at.backward` stand in the whole graph. Collective; `begins` are those of the own rows."""
    counts = at.part.indptr.diff()
    shift = torch.repeat_interleave(begins - at.part.indptr[:-1], counts)
    return at.reversed(shift + torch.arange(len(shift)))
