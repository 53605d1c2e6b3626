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
from headrace.kernels._random import philox, words_of

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
    blocks = torch.arange(-(-width // 8), device=ids.device)
    words = philox(_key(seed, call), blocks, *words_of(ids.long().unsqueeze(1)))  # [k, blocks, 4]
    halves = torch.stack((words & 0xFFFF, words >> 16), dim=3)
    return halves.flatten(1)[:, :width]
