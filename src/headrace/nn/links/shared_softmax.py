"""`shared_softmax_loss`: the softmax loss of questions whose candidates are shared, with its gradients in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace import _native
from headrace._arrays import thread_count
from headrace.kernels import softmax_rows_
from headrace.nn.links.link_losses import LOW


def shared_softmax_loss(
    query: Tensor, answer: Tensor, candidates: Tensor, *, hidden: Tensor | None = None, threads: int | None = None
) -> Tensor:  # [k, q, d], [k, q, d], [k, n, d] -> []
    """How unlikely each query's own answer is among itself and the candidates of its chunk: the mean cross entropy.

    The same as `softmax_loss` of the scores of a decoder that compares by products (`Decoder.by_product`), but gradients are
    computed on the way. On a GPU scores are kept once, and normalized by one kernel. On the CPU, in float32, they never leave the
    cache: a block of questions is scored, normalized and turned into gradients before the next one. The bits do not depend on
    `threads` (default: torch's).

    hidden: which candidates do not count, as positions in [k, q, n] counted row by row: known edges, and the answer itself.

    >>> import torch, headrace as hr
    >>> query, answer, candidates = torch.eye(2)[None], torch.eye(2)[None], torch.zeros(1, 3, 2)
    >>> hr.nn.shared_softmax_loss(query, answer, candidates)  # -log(e / (e + 3))
    tensor(0.7437)
    """
    if query.dim() != 3 or query.shape != answer.shape:
        raise ValueError(f"query and answer must both be [k, q, d], not {tuple(query.shape)} and {tuple(answer.shape)}")
    if candidates.dim() != 3 or candidates.shape[::2] != query.shape[::2]:
        raise ValueError(
            f"candidates must be [{query.shape[0]}, n, {query.shape[2]}] for this query, not of shape {tuple(candidates.shape)}"
        )
    if hidden is not None:
        hidden = hidden.detach().long().contiguous()
    if query.is_cpu and query.dtype == answer.dtype == candidates.dtype == torch.float32:
        count = torch.get_num_threads() if threads is None else thread_count(threads)
        return _SharedSoftmax.apply(query, answer, candidates, hidden, count)  # type: ignore[no-untyped-call, no-any-return]
    return _SharedProducts.apply(query, answer, candidates, hidden)  # type: ignore[no-untyped-call, no-any-return]


class _SharedSoftmax(torch.autograd.Function):
    """The native pass computes the gradients with the loss; backward only scales them."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, answer: Tensor, candidates: Tensor, hidden: Tensor | None, threads: int) -> Tensor:
        inputs = [x.detach().contiguous() for x in (query, answer, candidates)]
        grads = [torch.empty_like(x) for x in inputs]
        loss = _native.shared_softmax(
            *inputs, hidden=hidden, to_query=grads[0], to_answer=grads[1], to_candidates=grads[2], threads=threads
        )
        ctx.save_for_backward(*grads)
        return query.new_tensor(loss)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return *(kept * grad for kept in ctx.saved_tensors), None, None


class _SharedProducts(torch.autograd.Function):
    """The same by torch's products: one array of scores, whose place their gradients take."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, answer: Tensor, candidates: Tensor, hidden: Tensor | None) -> Tensor:
        scores = torch.bmm(query, candidates.transpose(1, 2))
        if hidden is not None:
            scores.view(-1).index_fill_(0, hidden, LOW)
        own = (query * answer).sum(-1)
        loss, to_own = softmax_rows_(scores.flatten(0, 1), own.flatten(), share=1 / max(own.numel(), 1))
        pull = to_own.view(own.shape).unsqueeze(-1)
        to_query = torch.baddbmm(pull * answer, scores, candidates)
        ctx.save_for_backward(to_query, pull * query, torch.bmm(scores.transpose(1, 2), query))
        return loss.mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return *(kept * grad for kept in ctx.saved_tensors), None
