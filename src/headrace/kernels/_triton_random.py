"""Random draws that several Triton kernels share: the numbers of native/philox.h, from the same counters."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def key_of_seed(seed, purpose: tl.constexpr):  # type: ignore[no-untyped-def]
    """The stream key of a seed that lies on the device: `stream_key(seed, 0, 0, purpose)` of native/philox.h."""
    zero = tl.zeros([1], tl.uint32)
    k0, k1, _, _ = tl.philox(tl.load(seed), zero, zero, zero, zero + purpose)
    return tl.sum(k0.to(tl.int64) | (k1.to(tl.int64) << 32), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def half_words(key, c0, c1, c2, lane):  # type: ignore[no-untyped-def]
    """16 bits for each of the eight lanes that the four words of a counter serve.  # [n, 1], [1, 8] -> [n, 8]"""
    w0, w1, w2, w3 = tl.philox(key, c0, c1, c2, c0 * 0)
    word = tl.where(lane < 4, tl.where(lane < 2, w0, w1), tl.where(lane < 6, w2, w3))
    return tl.where(lane % 2 == 0, word & 0xFFFF, word >> 16)
