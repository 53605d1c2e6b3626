"""`KnownEdges`: which ends are known to complete a question (head, relation, ?) or (?, relation, tail)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Side = Literal["tail", "head"]


class KnownEdges:
    """Edges sorted by question, once for each side.

    Used to leave true edges out of rankings ("filtered", Bordes et al., NeurIPS 2013) and out of negatives. Takes 16 bytes an
    edge and side.

    >>> import torch
    >>> from headrace.sample import KnownEdges
    >>> known = KnownEdges(torch.tensor([[0, 0, 1], [0, 0, 2], [3, 1, 2]]), num_nodes=4, num_relations=2)
    >>> known.answers(torch.tensor([3, 0]), torch.tensor([1, 0]), side="tail")
    (tensor([0, 1, 1]), tensor([2, 1, 2]))
    """

    def __init__(self, triples: Tensor, *, num_nodes: int, num_relations: int) -> None:
        if triples.dim() != 2 or triples.shape[1] != 3:
            raise ValueError(f"triples must be rows of head, relation and tail, not of shape {tuple(triples.shape)}")
        # Sorting is most of the work: edges on a GPU are sorted there.
        if num_nodes * num_relations >= 2**63:
            raise ValueError(f"{num_nodes} nodes and {num_relations} relations have more questions than 64 bits number")
        self.num_nodes, self.num_relations = num_nodes, num_relations
        head, relation, tail = (triples[:, i].long() for i in range(3))
        self._sides = {"tail": self._sorted(head, relation, tail), "head": self._sorted(tail, relation, head)}

    def to(self, device: torch.device | str) -> KnownEdges:
        """The same on a device."""
        moved = object.__new__(KnownEdges)
        moved.num_nodes, moved.num_relations = self.num_nodes, self.num_relations
        moved._sides = {side: (questions.to(device), ends.to(device)) for side, (questions, ends) in self._sides.items()}
        return moved

    def _sorted(self, end: Tensor, relation: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        question = end * self.num_relations + relation
        by_other = other.argsort(stable=True)  # so that answers come in the order of ids
        order = by_other[question[by_other].argsort(stable=True)]
        question, other = question[order], other[order]
        fresh = torch.ones(len(question), dtype=torch.bool, device=question.device)
        fresh[1:] = (question[1:] != question[:-1]) | (other[1:] != other[:-1])  # an edge that is listed twice is one
        return question[fresh], other[fresh]

    def answers(self, end: Tensor, relation: Tensor, *, side: Side) -> tuple[Tensor, Tensor]:  # [q], [q] -> [m], [m]
        """All known answers: the position of the question in `end`, and the node that answers it at `side`."""
        questions, others = self._sides[side]
        position, index = _all_places(questions, end.long() * self.num_relations + relation.long())
        return position, others[index]

    def has(self, triples: Tensor) -> Tensor:  # [t, 3] -> [t] bool
        """Which of these edges are known."""
        head, relation, tail = triples.to(self._sides["tail"][0].device).unbind(1)
        position, node = self.answers(head, relation, side="tail")
        known = torch.zeros(len(triples), dtype=torch.bool, device=head.device)
        known[position[node == tail[position]]] = True
        return known.to(triples.device)


def drawn_as(
    candidates: Tensor, chunk: Tensor, node: Tensor, *, num_nodes: int
) -> tuple[Tensor, Tensor]:  # [k, n], [m], [m] -> [h], [h]
    """Where `node[i]` is among the candidates of chunk `chunk[i]`: i and the column, for every time that it was drawn."""
    ordered, order = candidates.long().sort(dim=1)
    keys = (ordered + torch.arange(len(candidates), device=candidates.device)[:, None] * num_nodes).flatten()
    which, at = _all_places(keys, node + chunk * num_nodes)
    return which, order.flatten()[at]


def _all_places(keys: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:  # [n] rising, [m] -> [h], [h]
    """i and the place, for every time that `wanted[i]` is among the keys."""
    first = torch.searchsorted(keys, wanted)
    count = torch.searchsorted(keys, wanted, right=True) - first
    which = torch.repeat_interleave(torch.arange(len(wanted), device=wanted.device), count)
    return which, torch.arange(len(which), device=wanted.device) - (count.cumsum(0) - count)[which] + first[which]


def known_among(
    known: KnownEdges, end: Tensor, relation: Tensor, candidates: Tensor, *, side: Side
) -> Tensor:  # [k, b], [k, b], [k, n] -> [k, b, n] bool
    """Which candidates of a chunk, shared by its questions, are known answers."""
    chunks, edges = end.shape
    position, answer = known.answers(end.flatten(), relation.flatten(), side=side)
    which, column = drawn_as(candidates, position // max(edges, 1), answer, num_nodes=known.num_nodes)
    mask = torch.zeros(chunks * edges, candidates.shape[1], dtype=torch.bool, device=end.device)
    mask[position[which], column] = True
    return mask.view(chunks, edges, -1)
