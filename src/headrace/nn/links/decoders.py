"""Decoders: how likely an edge is, from the rows of its ends and the parameters of its relation.

A decoder is asked in two steps. `query` joins one end and the relation to a row that candidates for the other end are compared
with, so that a chunk of edges sees all of its candidates in one batched product (`score`). `triples` compares row by row.
A decoder of your own is a subclass with a `name` and a `join`, and `register_decoder` lets options name it.

    Dot        <h, t>
    DistMult   <h * r, t>               Yang et al., ICLR 2015
    ComplEx    Re <h * r, conj(t)>      Trouillon et al., ICML 2016
    RESCAL     h^T R t                  Nickel et al., ICML 2011
    TransE     -|h + r - t|             Bordes et al., NeurIPS 2013
    RotatE     -|h * e^(i r) - t|       Sun et al., ICLR 2019

The last two are in `headrace.nn.links.distance_decoders`. Rows of complex numbers hold all real parts, then all imaginary ones.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Side = Literal["tail", "head"]
D = TypeVar("D", bound="type[Decoder]")

DECODERS: dict[str, type[Decoder]] = {}
"""Decoders by the names that options know them by."""


def register_decoder(kind: D) -> D:
    """Let options name a decoder of this class, as in `LinkOptions(decoder="simple")`; a decorator of classes.

    A run records the name alone. To open a run later, register the class first.
    """
    if not kind.name or kind.name == "auto":
        raise ValueError(f"{kind.__name__} needs a name of its own, as in name = 'simple', not {kind.name!r}")
    other = DECODERS.get(kind.name)
    if other is not None and (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ValueError(f"{kind.name!r} is the name of {other.__module__}.{other.__qualname__} already: choose another")
    DECODERS[kind.name] = kind
    return kind


def decoder_named(name: str) -> type[Decoder]:
    """The registered class called `name`."""
    if name not in DECODERS:
        known = ", ".join(DECODERS)
        raise ValueError(f"decoder must be one of auto, {known}, not {name!r}: register your own with hr.nn.register_decoder")
    return DECODERS[name]


class Decoder(nn.Module):
    """Scores of edges. `relation` holds a row of parameters per relation, twice as many rows if `reciprocal`.

    With reciprocal relations (Lacroix et al., ICML 2018) the question "which head?" of relation r is the question "which tail?" of
    a relation r + R that has parameters of its own, so a question has the same form on either side.

    A subclass says what it is by the attributes below, and implements `join`. All that is trained of it is `relation`, of
    `relation_width` floats a row. It may override `score` and `compare` together; then
    it no longer compares by products, unless it says so. A native step is never inherited: a subclass computes something else.

    >>> import torch, headrace as hr
    >>> decoder = hr.nn.DistMult(4, relations=2)
    >>> head, tail, relation = torch.ones(3, 4), torch.ones(3, 4), torch.tensor([0, 1, 0])
    >>> question = decoder.query(head, relation, side="tail")
    >>> bool(torch.isclose(decoder.score(question[None], tail[None])[0, 0, 0], decoder.triples(head, relation, tail)[0]))
    True
    """

    name = ""  # by which options know it
    parts = 1  # numbers that make one coordinate: 2 where they are complex
    by_product = True  # whether a score is the product of query and candidate, so that a softmax may share one matrix product
    native_step: str | None = None  # name of the native step (native/link_step.h) that trains it on a CPU
    takes_norm = False  # whether the constructor takes `norm`

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        declared = vars(cls)
        if "native_step" not in declared:
            cls.native_step = None
        if "by_product" not in declared and ("score" in declared or "compare" in declared):
            cls.by_product = False

    def __init__(self, dim: int, relations: int = 1, *, reciprocal: bool = False) -> None:
        super().__init__()
        if dim < 1 or dim % self.parts:
            even = " and even (half are imaginary)" if self.parts == 2 else ""
            raise ValueError(f"dim must be positive{even}, not {dim}")
        if relations < 1:
            raise ValueError(f"relations must be at least 1, not {relations}")
        self.dim, self.relations, self.reciprocal = dim, relations, reciprocal
        self.relation = nn.Parameter(torch.empty(relations * (2 if reciprocal else 1), self.relation_width))
        self.reset_parameters()

    @property
    def relation_width(self) -> int:
        """Parameters of one relation."""
        return self.dim

    def reset_parameters(self, scale: float = 1e-3, generator: torch.Generator | None = None) -> None:
        """Draw the relations' parameters anew: normal, with this standard deviation."""
        with torch.no_grad():
            self.relation.normal_(0, scale, generator=generator)

    def query(self, rows: Tensor, relation: Tensor, *, side: Side = "tail") -> Tensor:  # [..., d], [...] -> [..., d]
        """What candidates for the end at `side` are compared with; `rows` are those of the other end."""
        if side not in ("tail", "head"):
            raise ValueError(f"side must be 'tail' or 'head', not {side!r}")
        if self.reciprocal and side == "head":
            return self.join(rows, self.parameters_of(relation, side=side), False)
        return self.join(rows, self.parameters_of(relation), side == "head")

    def queries(self, head: Tensor, relation: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:  # [b, d], [b], [b, d] -> 2 x [b, d]
        """Both questions of each edge, for its tail and for its head; the relations' parameters are looked up once."""
        if not self.reciprocal:
            parameters = self.parameters_of(relation)
            return self.join(head, parameters, False), self.join(tail, parameters, True)
        both = torch.cat([relation, relation + self.relations])
        to_tail, to_head = self.parameters_of(both).chunk(2)
        return self.join(head, to_tail, False), self.join(tail, to_head, False)

    def score(self, query: Tensor, candidates: Tensor) -> Tensor:  # [k, b, d], [k, n, d] -> [k, b, n]
        """Every query of a chunk against every candidate of the chunk."""
        scores: Tensor = _Products.apply(query, candidates)  # type: ignore[no-untyped-call]
        return scores

    def compare(self, query: Tensor, other: Tensor) -> Tensor:  # [..., d], [..., d] -> [...]
        """Each query against its own candidate."""
        return (query * other).sum(-1)

    def triples(self, head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:  # [b, d], [b], [b, d] -> [b]
        """The score of each edge."""
        return self.compare(self.query(head, relation, side="tail"), tail)

    def parameters_of(self, relation: Tensor, *, side: Side = "tail") -> Tensor:  # [...] -> [..., w]
        """Rows of the relations' parameters, of the reciprocal ones for `head` where there are any."""
        shift = self.relations if self.reciprocal and side == "head" else 0
        return F.embedding(relation.long() + shift, self.relation)  # its gradient sums in a fixed order on a GPU too

    def moduli(self, values: Tensor) -> Tensor:  # [..., w] -> [..., w / parts]
        """How large each coordinate is: what regularizers measure."""
        if self.parts == 1:
            return values.abs()
        real, imaginary = values.chunk(2, dim=-1)
        # The square root has no gradient at 0, which is where many coordinates begin and end.
        return (real.square() + imaginary.square()).clamp_min(1e-30).sqrt()

    def relation_moduli(self, parameters: Tensor) -> Tensor:  # [..., w] -> [..., at most w]
        """The same of relations' parameters, where they have a size."""
        return self.moduli(parameters)

    def join(self, rows: Tensor, parameters: Tensor, inverse: bool) -> Tensor:  # [..., d], [..., w] -> [..., d]
        """What candidates are compared with: rows of heads and their relations' parameters, or of tails if `inverse`."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{self.dim}, relations={self.relations}, reciprocal={self.reciprocal}"


@register_decoder
class Dot(Decoder):
    """<h, t>: for graphs whose edges are all of one kind, in both directions alike. It has no parameters."""

    name = "dot"
    native_step = "dot"

    @property
    def relation_width(self) -> int:
        return 0

    def join(self, rows: Tensor, parameters: Tensor, inverse: bool) -> Tensor:
        return rows


@register_decoder
class DistMult(Decoder):
    """<h * r, t>: alike in both directions of an edge, unless relations are reciprocal."""

    name = "distmult"
    native_step = "distmult"

    def join(self, rows: Tensor, parameters: Tensor, inverse: bool) -> Tensor:
        return rows * parameters


@register_decoder
class ComplEx(Decoder):
    """Re <h * r, conj(t)> over dim / 2 complex numbers."""

    name = "complex"
    native_step = "complex"
    parts = 2

    def join(self, rows: Tensor, parameters: Tensor, inverse: bool) -> Tensor:
        return rotated(rows, parameters, inverse)


@register_decoder
class RESCAL(Decoder):
    """h^T R t, with a matrix of dim * dim parameters per relation."""

    name = "rescal"

    @property
    def relation_width(self) -> int:
        return self.dim * self.dim

    def reset_parameters(self, scale: float = 1e-3, generator: torch.Generator | None = None) -> None:
        """Near the identity, so that edges begin as dot products."""
        super().reset_parameters(scale, generator)
        with torch.no_grad():
            self.relation.view(-1, self.dim, self.dim).diagonal(dim1=1, dim2=2).add_(scale)

    def join(self, rows: Tensor, parameters: Tensor, inverse: bool) -> Tensor:
        matrix = parameters.unflatten(-1, (self.dim, self.dim))
        matrix = matrix.transpose(-1, -2) if inverse else matrix
        return torch.matmul(rows.unsqueeze(-2), matrix).squeeze(-2)


class _Products(torch.autograd.Function):
    """query @ candidates^T, with both gradients in the layout of what they are added to: no copies to turn them."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, candidates: Tensor) -> Tensor:  # [k, b, d], [k, n, d] -> [k, b, n]
        ctx.save_for_backward(query, candidates)
        return torch.bmm(query, candidates.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        query, candidates = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        to_query = torch.bmm(grad, candidates) if wanted[0] else None
        return to_query, torch.bmm(grad.transpose(1, 2), query) if wanted[1] else None


def rotated(rows: Tensor, by: Tensor, inverse: bool = False) -> Tensor:  # [..., d], [..., d] -> [..., d]
    """The product of complex rows, of the conjugate of `by` if `inverse`."""
    real, imaginary = rows.chunk(2, dim=-1)
    by_real, by_imaginary = by.chunk(2, dim=-1)
    if inverse:
        by_imaginary = -by_imaginary
    return torch.cat([real * by_real - imaginary * by_imaginary, real * by_imaginary + imaginary * by_real], dim=-1)
