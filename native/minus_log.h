// -log of a random number, in additions, subtractions and multiplications of float32 alone: the same bits wherever these are
// IEEE operations and are not fused, so that a draw by weight is the same on every processor.
#pragma once

#include <stdint.h>

namespace headrace {

// -log x for x = (n + 1/2) / 2^23, n being the upper 23 bits of `word`: x is exact, and lies between 2^-24 and 1 - 2^-24.
// With x = 2^e m and m in [sqrt(1/2), sqrt(2)), log x = e log 2 + log(1 + f), f = m - 1, and
// log(1 + f) = f + f^2 (f Q(f) - 1/2), Q being the minimax polynomial of degree 6 for the relative error. Over all n the result is
// within 1.15e-7 of the truth, relatively, also next to x = 1 (there e = 0, and f is exact), and decreases strictly in n.
static inline float minus_log(uint32_t word) {
    const float x = (static_cast<float>(static_cast<int32_t>(word >> 9)) + 0.5f) * 0x1p-23f;
    int32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    const int32_t e = (bits - 0x3F3504F3) >> 23;  // 0x3F3504F3 is sqrt(1/2)
    bits -= static_cast<int32_t>(static_cast<uint32_t>(e) << 23);
    float m;
    __builtin_memcpy(&m, &bits, 4);
    const float f = m - 1.0f;
    float q = 0x1.645EA0p-4f;
    q = q * f - 0x1.2432B8p-3f;
    q = q * f + 0x1.317458p-3f;
    q = q * f - 0x1.53824Ap-3f;
    q = q * f + 0x1.98D7F2p-3f;
    q = q * f - 0x1.000382p-2f;
    q = q * f + 0x1.5556D8p-2f;
    const float log_m = f + (f * f) * (q * f - 0.5f);
    return static_cast<float>(-e) * 0x1.62E430p-1f - log_m;
}

}  // namespace headrace
