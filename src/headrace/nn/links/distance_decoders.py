"""Decoders by distance: TransE and RotatE. The nearer the tail is to where the relation takes the head, the likelier the edge."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from headrace.nn.links.decoders import Decoder, register_decoder, rotated

_SMALLEST = 1e-12  # of a squared distance: below, the square root's gradient is noise
_TILE = {"cpu": 1 << 18, "cuda": 1 << 26}  # coordinates compared at a time: what fits a cache, or fills a GPU

Norm = Literal["l1", "l2"]


class DistanceDecoder(Decoder):
    """Minus the distance of a query and a candidate.

    norm: "l2" is one batched product per chunk; "l1", the sum of the coordinates' moduli, compares coordinate by coordinate in
    tiles, forward and backward, and never holds chunk * queries * candidates * dim numbers.
    """

    by_product = False
    takes_norm = True

    def __init__(self, dim: int, relations: int = 1, *, reciprocal: bool = False, norm: Norm = "l1") -> None:
        if norm not in ("l1", "l2"):
            raise ValueError(f"norm must be 'l1' or 'l2', not {norm!r}")
        self.norm = norm
        super().__init__(dim, relations, reciprocal=reciprocal)

    def score(self, query: Tensor, candidates: Tensor) -> Tensor:
        if self.norm == "l1":
            distance: Tensor = _SumOfModuli.apply(query, candidates, self.parts)  # type: ignore[no-untyped-call]
            return -distance
        squares = query.square().sum(-1, keepdim=True) + candidates.square().sum(-1).unsqueeze(1)
        return -torch.baddbmm(squares, query, candidates.transpose(1, 2), alpha=-2).clamp_min(_SMALLEST).sqrt()

    def compare(self, query: Tensor, other: Tensor) -> Tensor:
        difference = query - other
        if self.norm == "l1":
            return -self.moduli(difference).sum(-1)
        return -difference.square().sum(-1).clamp_min(_SMALLEST).sqrt()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, norm={self.norm!r}"


@register_decoder
class TransE(DistanceDecoder):
    """-|h + r - t|."""

    name = "transe"

    def join(self, rows: Tensor, parameters: Tensor, inverse: bool) -> Tensor:
        return rows - parameters if inverse else rows + parameters


@register_decoder
class RotatE(DistanceDecoder):
    """-|h * e^(i r) - t| over dim / 2 complex numbers: a relation is an angle for each of them.

    The paper's distance is "l1", the sum of the moduli; "l2" is the root of the sum of their squares.
    """

    name = "rotate"
    parts = 2

    @property
    def relation_width(self) -> int:
        return self.dim // 2

    def reset_parameters(self, scale: float = 1e-3, generator: torch.Generator | None = None) -> None:
        """Angles have no scale: any is as likely."""
        with torch.no_grad():
            self.relation.uniform_(-math.pi, math.pi, generator=generator)

    def relation_moduli(self, parameters: Tensor) -> Tensor:
        """None: an angle is not large or small."""
        return parameters[..., :0]

    def join(self, rows: Tensor, parameters: Tensor, inverse: bool) -> Tensor:
        return rotated(rows, torch.cat([parameters.cos(), parameters.sin()], dim=-1), inverse)


class _SumOfModuli(torch.autograd.Function):
    """sum over coordinates of |query - candidate|, of one part or of two; the differences are computed again for the gradient."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, candidates: Tensor, parts: int) -> Tensor:  # [k, b, d], [k, n, d] -> [k, b, n]
        ctx.save_for_backward(query, candidates)
        ctx.parts = parts
        if parts == 1:
            return torch.cdist(query, candidates, p=1)
        out = query.new_empty(*query.shape[:2], candidates.shape[1])
        for some, others, difference in _differences(query, candidates, parts):
            out[:, some, others] = _size(difference).sum(-1)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        query, candidates = ctx.saved_tensors
        grad_query, grad_candidates = torch.zeros_like(query), torch.zeros_like(candidates)
        for some, others, difference in _differences(query, candidates, ctx.parts):
            if ctx.parts == 1:
                direction = difference.sign_()
            else:
                direction = difference.div_(_size(difference).clamp_min_(1e-15).unsqueeze(3))
            direction.mul_(grad[:, some, others, None, None])
            grad_query[:, some] += direction.sum(2).flatten(2)
            grad_candidates[:, others] -= direction.sum(1).flatten(2)
        return grad_query, grad_candidates, None


def _differences(query: Tensor, candidates: Tensor, parts: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Tiles of queries and candidates, and query - candidate.  # [k, b, d], [k, n, d] -> [k, some, others, parts, d / parts]"""
    chunks, queries, dim = query.shape
    pairs = max(_TILE.get(query.device.type, _TILE["cpu"]) // max(chunks * dim, 1), 1)
    high = max(min(queries, math.isqrt(pairs)), 1)
    wide = max(pairs // high, 1)
    shape = (parts, dim // parts)
    left, right = query.unflatten(2, shape).unsqueeze(2), candidates.unflatten(2, shape).unsqueeze(1)
    for top in range(0, queries, high):
        some = slice(top, min(top + high, queries))
        for begin in range(0, candidates.shape[1], wide):
            others = slice(begin, min(begin + wide, candidates.shape[1]))
            yield some, others, left[:, some] - right[:, :, others]


def _size(difference: Tensor) -> Tensor:
    """The moduli of differences.  # [..., parts, w] -> [..., w]"""
    if difference.shape[-2] == 1:
        return difference.squeeze(-2).abs()
    real, imaginary = difference.unbind(-2)
    return real.square().addcmul_(imaginary, imaginary).sqrt_()  # half the time of hypot, which minds the largest of numbers
