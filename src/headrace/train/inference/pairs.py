"""How well scores tell edges from pairs of nodes that are none, by the two figures that papers on plain graphs give: the area under
the receiver's curve (AUC) and the average precision (AP).

Every edge has one pair against it. Pairs are drawn from all pairs of two nodes that are no known edge, by the seed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.nn import Decoder
from headrace.sample import KnownEdges
from headrace.train.inference.ranking import ReadRows, rows_of
from headrace.train.measure import auc, average_precision

_BLOCK = 1 << 14  # pairs that are scored at a time
_TRIES = 100  # draws of the pairs that turned out to be edges; in a graph that is nearly complete some are left out


def tell_apart(
    decoder: Decoder,
    rows: ReadRows,
    triples: Tensor,
    *,
    known: KnownEdges | None,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> dict[str, float]:  # [t, 3]
    """`auc` and `ap` of some edges against as many pairs; neither where there are no pairs that are no edges.

    known: edges that a pair must not be. Without them any two nodes may be drawn, edges too.

    >>> import torch, headrace as hr
    >>> from headrace.train.inference.pairs import tell_apart
    >>> rows = hr.store.TrainedArray(torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]), torch.zeros(4, 0))
    >>> edges = torch.tensor([[0, 0, 1], [2, 0, 3]])
    >>> known = hr.sample.KnownEdges(torch.cat([edges, edges.flip(1)]), num_nodes=4, num_relations=1)
    >>> tell_apart(hr.nn.Dot(1), rows, edges, known=known)
    {'auc': 1.0, 'ap': 1.0}
    """
    where = torch.device(device)
    pairs = draw_pairs(len(triples), rows.num_rows, known, seed=seed)
    if not len(pairs) or not len(triples):
        return {}
    scores = torch.cat([_scores(decoder, rows, some, where) for some in (triples, pairs)])
    true = torch.arange(len(scores)) < len(triples)
    values = {"auc": auc(scores, true), "ap": average_precision(scores, true)}
    return {name: value for name, value in values.items() if value is not None}


def draw_pairs(count: int, num_nodes: int, known: KnownEdges | None, *, seed: int) -> Tensor:  # -> [at most count, 3]
    """Pairs of two nodes that are no known edges, as (head, 0, tail): uniform, and the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.empty(0, 3, dtype=torch.long)
    for _ in range(_TRIES if num_nodes > 1 else 0):
        missing = count - len(pairs)
        if not missing:
            break
        head = torch.randint(num_nodes, (missing,), generator=generator)
        tail = (head + torch.randint(1, num_nodes, (missing,), generator=generator)) % num_nodes
        drawn = torch.stack([head, torch.zeros_like(head), tail], dim=1)
        pairs = torch.cat([pairs, drawn if known is None else drawn[~known.has(drawn)]])
    return pairs


def _scores(decoder: Decoder, rows: ReadRows, triples: Tensor, device: torch.device) -> Tensor:  # [t, 3] -> [t] on the CPU
    parts = []
    with torch.no_grad():
        for part in triples.long().split(_BLOCK):
            ids, place = part[:, ::2].flatten().unique(return_inverse=True)
            head, tail = rows_of(rows, ids, device)[place.to(device)].view(len(part), 2, -1).unbind(1)
            parts.append(decoder.compare(decoder.query(head, part[:, 1].to(device)), tail).cpu())
    return torch.cat(parts)
