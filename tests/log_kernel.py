"""A kernel that only takes logarithms of random words: Triton needs it in a file."""

import triton
import triton.language as tl

from headrace.kernels._sampling.triton_keys import minus_log


@triton.jit
def minus_log_kernel(words, out, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    tl.store(out + at, minus_log(tl.load(words + at).to(tl.uint32, bitcast=True)))
