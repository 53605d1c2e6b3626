// Philox, eight blocks at a time (philox.h has the function itself). For vector_*.cpp alone, as vector_elements.h.
#pragma once

#include "vector.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace::HEADRACE_LEVEL {
namespace {

struct Counters {  // blocks to draw, in structure-of-arrays form, eight at a time
    uint64_t first[8], second[8], third[8];
};

// Eight blocks of four words, one block after the other.
inline void philox8(PhiloxKey key, uint32_t last, const Counters& in, uint32_t* words) {
#if defined(__AVX512F__)
    __m512i c0 = _mm512_loadu_si512(in.first), c1 = _mm512_loadu_si512(in.second);
    __m512i c2 = _mm512_loadu_si512(in.third), c3 = _mm512_set1_epi64(last);
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53u), m1 = _mm512_set1_epi64(0xCD9E8D57u);
    uint32_t k0 = key.k0, k1 = key.k1;
    // Lanes hold 32-bit values; what gathers above bit 32 is never read by the multiplication.
    for (int round = 0; round < 10; ++round) {
        const __m512i a = _mm512_mul_epu32(m0, c0), b = _mm512_mul_epu32(m1, c2);
        c0 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(b, 32), c1), _mm512_set1_epi64(k0));
        c1 = b;
        c2 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(a, 32), c3), _mm512_set1_epi64(k1));
        c3 = a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const __m512i low = _mm512_set1_epi64(0xFFFFFFFF);
    const __m512i w01 = _mm512_or_si512(_mm512_and_si512(c0, low), _mm512_slli_epi64(c1, 32));
    const __m512i w23 = _mm512_or_si512(_mm512_and_si512(c2, low), _mm512_slli_epi64(c3, 32));
    const __m512i first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i second = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    _mm512_storeu_si512(words, _mm512_permutex2var_epi64(w01, first, w23));
    _mm512_storeu_si512(words + 16, _mm512_permutex2var_epi64(w01, second, w23));
#else
    for (int i = 0; i < 8; ++i) {
        const PhiloxBlock block =
            philox(key, static_cast<uint32_t>(in.first[i]), static_cast<uint32_t>(in.second[i]),
                   static_cast<uint32_t>(in.third[i]), last);
        for (int w = 0; w < 4; ++w) words[4 * i + w] = block.word[w];
    }
#endif
}

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
