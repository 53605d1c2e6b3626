"""Gradients of several ranks, summed in the order of their batches: the number of ranks changes no bit of the sum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.ranks.exchange import Exchange, Traffic


def sum_gradients(
    parts: Sequence[Tensor],
    *,
    batches: int,
    exchange: Exchange | None = None,
    like: Tensor | None = None,
    owners: Sequence[int] | None = None,
) -> Tensor:  # each [parameters] -> [parameters]
    """Return ((g0 + g1) + g2) + ... over the batches of a step, the same bits on every rank and for every number of ranks.

    Rank r of n has batches r, r + n, r + 2n, ... of the step's `batches`, or those that `owners` gives it, the rank of each batch;
    `parts` are their flat gradients, in this order. A rank without a batch passes no parts, and `like`:
    a tensor of the length, dtype and device of a gradient. Each rank owns a slice of
    the parameters: it receives that slice of every batch (phase "scatter"), adds them in order, and the sums are gathered (phase
    "collect"). The bytes are those of `gradient_bytes`. The sum may be the memory of `parts[0]`.

    >>> import torch
    >>> from headrace.ranks import sum_gradients
    >>> sum_gradients([torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])], batches=2)
    tensor([11., 22.])
    """
    rank, size = (0, 1) if exchange is None else (exchange.rank, exchange.size)
    dealt = [batch % size for batch in range(batches)] if owners is None else list(owners)
    first = _checked(parts, owners=dealt, rank=rank, size=size, like=like)
    if exchange is None or size == 1:
        return _in_order(parts)
    exchange.begin()
    parameters = len(first)
    bounds = _bounds(parameters, size)
    lengths = [end - begin for begin, end in bounds]
    shares = [dealt.count(other) for other in range(size)]
    received = exchange.all_to_all(
        "scatter",
        _by_owner([part.to(exchange.wire) for part in parts], bounds, empty=first.new_empty(0, device=exchange.wire)),
        sending=[len(parts) * length for length in lengths],
        receiving=[share * lengths[rank] for share in shares],
    ).wait()
    by_rank = received.split([share * lengths[rank] for share in shares])
    slices = [part.view(share, lengths[rank]) for part, share in zip(by_rank, shares, strict=True)]
    own = received.new_zeros(_longest(parameters, size))  # as long on every rank, which a gather needs
    of_rank = [iter(part) for part in slices]
    own[: lengths[rank]] = _in_order([next(of_rank[owner]) for owner in dealt])
    return exchange.all_gather("collect", own)[:parameters].to(first.device)


def gradient_bytes(
    parameters: int, itemsize: int, batches: int, size: int, rank: int, own: int | None = None
) -> dict[str, Traffic]:
    """Return the bytes that `sum_gradients` sends and receives on a rank, by phase. `own`: its batches, where owners were given.

    With n ranks and as many batches that is about 2 (n - 1) / n times the gradient, as a ring all-reduce.

    >>> from headrace.ranks import gradient_bytes
    >>> gradient_bytes(1000, itemsize=4, batches=4, size=4, rank=0)
    {'scatter': Traffic(sent=3000, received=3000), 'collect': Traffic(sent=3000, received=3000)}
    """
    if size == 1:
        return {"scatter": Traffic(), "collect": Traffic()}
    begin, end = _bounds(parameters, size)[rank]
    length, share = end - begin, len(range(rank, batches, size)) if own is None else own
    collect = (size - 1) * _longest(parameters, size) * itemsize
    return {
        "scatter": Traffic(sent=share * (parameters - length) * itemsize, received=(batches - share) * length * itemsize),
        "collect": Traffic(sent=collect, received=collect),
    }


def _checked(parts: Sequence[Tensor], *, owners: Sequence[int], rank: int, size: int, like: Tensor | None) -> Tensor:
    """Return a tensor of the length, dtype and device of a gradient, once the arguments fit together."""
    batches = len(owners)
    if batches < 1:
        raise ValueError(f"batches must be at least 1, not {batches}")
    if len(parts) != (share := owners.count(rank)):
        raise ValueError(f"rank {rank} of {size} has {share} of {batches} batches, and {len(parts)} parts were given")
    if not parts and like is None:
        raise ValueError(f"rank {rank} has no batch of this step: pass like=, a tensor of the length and dtype of a gradient")
    first = parts[0] if parts else like
    assert first is not None
    for part in (*parts, *(() if like is None else (like,))):
        if part.dim() != 1 or (len(part), part.dtype, part.device) != (len(first), first.dtype, first.device):
            raise ValueError(
                f"gradients must be flat and alike: one is {first.dtype} of shape {list(first.shape)} on {first.device}, "
                f"another {part.dtype} of shape {list(part.shape)} on {part.device}"
            )
    return first


def _in_order(parts: Sequence[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


def _by_owner(parts: Sequence[Tensor], bounds: list[tuple[int, int]], *, empty: Tensor) -> Tensor:
    """Lay out the parts as they are sent: for each rank its slice of every part."""
    if not parts:
        return empty
    if len(parts) == 1:
        return parts[0].contiguous()
    return torch.cat([part[begin:end] for begin, end in bounds for part in parts])


def _longest(parameters: int, size: int) -> int:
    return -(-parameters // size)


def _bounds(parameters: int, size: int) -> list[tuple[int, int]]:
    """Begin and end of every rank's slice: all of one length, the last ones shorter."""
    step = _longest(parameters, size)
    return [(min(rank * step, parameters), min((rank + 1) * step, parameters)) for rank in range(size)]
