"""Keys by which neighbors are ranked on a GPU: the numbers of native/vector_rank.cpp, bit for bit.

No multiplication here may be fused with an addition, or the logarithm would not have the CPU's bits: kernels that use this are
launched with `enable_fp_fusion=False`.
"""

import triton
import triton.language as tl

from headrace.kernels._sampling.triton_draw import words_of

_Q6 = tl.constexpr(float.fromhex("0x1.645EA0p-4"))
_Q5 = tl.constexpr(float.fromhex("0x1.2432B8p-3"))
_Q4 = tl.constexpr(float.fromhex("0x1.317458p-3"))
_Q3 = tl.constexpr(float.fromhex("0x1.53824Ap-3"))
_Q2 = tl.constexpr(float.fromhex("0x1.98D7F2p-3"))
_Q1 = tl.constexpr(float.fromhex("0x1.000382p-2"))
_Q0 = tl.constexpr(float.fromhex("0x1.5556D8p-2"))
_LOG_2 = tl.constexpr(float.fromhex("0x1.62E430p-1"))
_UNIT = tl.constexpr(2.0**-23)
_MOST = tl.constexpr(0xFFFFFFFF)


@triton.jit  # type: ignore[untyped-decorator]
def minus_log(word):  # type: ignore[no-untyped-def]
    """-log of the random number that the upper 23 bits of `word` are: native/minus_log.h, operation by operation."""
    x = ((word >> 9).to(tl.int32).to(tl.float32) + 0.5) * _UNIT
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    q = f * _Q6 - _Q5
    q = q * f + _Q4
    q = q * f - _Q3
    q = q * f + _Q2
    q = q * f - _Q1
    q = q * f + _Q0
    log_m = f + (f * f) * (q * f - 0.5)
    return (-exponent).to(tl.float32) * _LOG_2 - log_m


@triton.jit  # type: ignore[untyped-decorator]
def _entry_words(key, word, node, first, live):  # type: ignore[no-untyped-def]
    """Words of entries `first` and behind it, as many as are `live` or not: four to a block.  # -> [rows, width]"""
    block = first // 4 + tl.arange(0, live.shape[1] // 4).to(tl.int64)[None, :]
    w0, w1, w2, w3 = words_of(key, block, node, word)
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), live.shape)


@triton.jit  # type: ignore[untyped-decorator]
def _neighbor_words(key, word, batch, dependency, neighbor, depends: tl.constexpr):  # type: ignore[no-untyped-def]
    """Words of neighbors: the first of a block each. Where batches depend on one another, a neighbor keeps its block for
    `dependency` batches; which of them is the first is its own."""
    block = neighbor * 0 + batch
    if depends:
        own, _, _, _ = words_of(key, neighbor * 0 + _MOST, neighbor, neighbor * 0 + _MOST)
        phase = (own.to(tl.uint64) * dependency.to(tl.uint64)) >> 32
        block = (batch + phase.to(tl.int64)) // dependency.to(tl.int64)
    w0, _, _, _ = words_of(key, block, neighbor, word)
    return w0


@triton.jit  # type: ignore[untyped-decorator]
def keys_of(ranked, first, live, labor: tl.constexpr, depends: tl.constexpr, weighted: tl.constexpr):  # type: ignore[no-untyped-def]
    """Keys of entries `first` and behind it of rows, for those that are `live`.  # [rows, 1] -> [rows, width], uint32

    ranked: (Philox key, last word of the counters, batch, dependency, node, start, neighbors, weight).
    """
    key, word, batch, dependency, node, start, neighbors, weight = ranked
    entry = start + first + tl.arange(0, live.shape[1]).to(tl.int64)[None, :]
    if labor:
        neighbor = tl.load(neighbors + entry, mask=live, other=0).to(tl.int64)
        words = _neighbor_words(key, word, batch, dependency, neighbor, depends)
    else:
        words = _entry_words(key, word, node, first, live)
    if weighted:
        number = tl.math.div_rn(minus_log(words), tl.load(weight + entry, mask=live, other=1.0))
        words = number.to(tl.uint32, bitcast=True)  # not negative: the bits are in the numbers' order
    return words
