"""Random draws of references: the words of native/philox.h in plain torch, from the same counters."""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


def philox(key: int, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """The four words of the counters (first, second, third, 0), each below 2**32.  # int64 [...] -> int64 [..., 4]

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011: Philox4x32-10.
    """
    c0, c1, c2, c3 = torch.broadcast_tensors(first, second, third, torch.zeros_like(first))
    k0, k1 = key & _WORD, key >> 32
    for _ in range(10):  # products wrap around at 64 bits, of which both halves are used
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = ((b >> 32) & _WORD) ^ c1 ^ k0, b & _WORD
        c2, c3 = ((a >> 32) & _WORD) ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return torch.stack((c0, c1, c2, c3), dim=-1)


def words_of(number: Tensor) -> tuple[Tensor, Tensor]:
    """The low and the high word of numbers of 64 bits, as counters have them."""
    return number & _WORD, (number >> 32) & _WORD
