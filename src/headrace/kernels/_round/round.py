"""Stochastic rounding to bfloat16.

A bfloat16 keeps 8 bits, so an update smaller than 1/256 of its parameter would be rounded away every time. Rounded up with the
probability of the part that is cut off, sums are right on average. Draws are Philox words keyed by (seed, call, id, column): the
same bits on any device, for any number of threads and any split of rows over partitions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace import _native
from headrace.kernels._on_gpu import on_gpu

_WORD = 0xFFFFFFFF


def round_to_bfloat16(values: Tensor, ids: Tensor, *, seed: int, call: int) -> Tensor:
    """`values` of the rows `ids`, each rounded up or down at random.  # [k, d] float32, [k] -> [k, d] bfloat16"""
    if not values.is_cuda:
        return round_to_bfloat16_reference(values, ids, seed=seed, call=call)
    rounded: Tensor = on_gpu("_round.triton_round").round_rows(values, ids, key=_key(seed, call))
    return rounded


def round_to_bfloat16_reference(values: Tensor, ids: Tensor, *, seed: int, call: int) -> Tensor:
    """The same in plain torch: what the native `add_trained` and the GPU's kernel do."""
    bits = values.contiguous().view(torch.int32).long() & _WORD
    finite = (bits & 0x7F800000) != 0x7F800000
    carried = bits + _draws(ids, values.shape[1], seed=seed, call=call)
    quiet = bits | torch.where((bits & 0x7FFFFF) != 0, 0x400000, 0)
    high = torch.where(finite, carried, quiet) >> 16
    return high.to(torch.int16).view(torch.bfloat16)


def _key(seed: int, call: int) -> int:
    return _native.stream_key(seed, 0, call, _native.Purpose.rounding)


def _draws(ids: Tensor, width: int, *, seed: int, call: int) -> Tensor:
    """16 random bits for every element of the rows `ids`.  # [k] -> [k, width] int64"""
    key = _key(seed, call)
    blocks = torch.arange(-(-width // 8), device=ids.device)
    node = ids.long().unsqueeze(1)
    c0, c1, c2, c3 = blocks.expand(len(ids), -1), node & _WORD, (node >> 32) & _WORD, torch.zeros_like(node)
    k0, k1 = key & _WORD, key >> 32
    for _ in range(10):  # products wrap around at 64 bits, of which both halves are used
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = ((b >> 32) & _WORD) ^ c1 ^ k0, b & _WORD
        c2, c3 = ((a >> 32) & _WORD) ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    words = torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), dim=2)  # [k, blocks, 4]
    halves = torch.stack((words & 0xFFFF, words >> 16), dim=3)
    return halves.flatten(1)[:, :width]
