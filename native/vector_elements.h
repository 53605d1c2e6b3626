// The types a row may have: how a vector of each is loaded, computed with and stored. For vector_*.cpp alone, which are compiled
// once per instruction set: HEADRACE_LEVEL names it, and each keeps its own copy of this.
#pragma once

#include "vector.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace::HEADRACE_LEVEL {
namespace {

typedef float Floats __attribute__((vector_size(64)));
typedef double Doubles __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

template <class V, class P>
inline V load_as(const P* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof(V));
    return v;
}
template <class V, class P>
inline void store_as(P* p, V v) {
    __builtin_memcpy(p, &v, sizeof(V));
}
// Past the caches, to an address that is a multiple of the vector's size.
template <class V, class P>
inline void stream_as(P* p, V v) {
#if defined(__AVX2__)
    __m256i parts[sizeof(V) / 32];
    __builtin_memcpy(parts, &v, sizeof(V));
    for (unsigned i = 0; i < sizeof(V) / 32; ++i) _mm256_stream_si256(reinterpret_cast<__m256i*>(p) + i, parts[i]);
#else
    store_as(p, v);
#endif
}

// Elements that are summed as they are stored.
template <class T, class V>
struct Plain {
    using Type = T;
    using Sum = T;
    using Vector = V;
    static V load(const T* p) { return load_as<V>(p); }
    static void store(T* p, V v) { store_as(p, v); }
    static void stream(T* p, V v) { stream_as(p, v); }
    static T get(const T* p) { return *p; }
    static void put(T* p, T v) { *p = v; }
};

struct F32 : Plain<float, Floats> {};
struct F64 : Plain<double, Doubles> {};

struct BF16 {
    using Type = uint16_t;
    using Sum = float;
    using Vector = Floats;
    static Floats load(const uint16_t* p) {
#if defined(__AVX512F__)
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
        return reinterpret_cast<Floats>(_mm512_slli_epi32(wide, 16));
#elif defined(__AVX2__)
        __m256i wide[2];
        for (int i = 0; i < 2; ++i)
            wide[i] = _mm256_slli_epi32(
                _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * i))), 16);
        return load_as<Floats>(wide);
#else
        return reinterpret_cast<Floats>(__builtin_convertvector(load_as<Halves>(p), Words) << 16);
#endif
    }
    static Halves packed(Floats v) {  // to nearest, ties to even; NaN stays NaN
#if defined(__AVX2__) && !defined(__AVX512F__)
        __m256 parts[2];
        __m256i words[2];
        __builtin_memcpy(parts, &v, 64);
        for (int i = 0; i < 2; ++i) {
            const __m256i bits = _mm256_castps_si256(parts[i]);
            const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
            const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
            const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(parts[i], parts[i], _CMP_UNORD_Q));
            words[i] = _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(0x7FC0), nan);
        }
        // Packing takes turns between the halves of its operands: the quarters are put back in order.
        return reinterpret_cast<Halves>(_mm256_permute4x64_epi64(_mm256_packus_epi32(words[0], words[1]), 0xD8));
#else
        const auto bits = reinterpret_cast<Words>(v);
        const auto rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
        const auto nan = reinterpret_cast<Words>(v != v);
        return __builtin_convertvector((rounded & ~nan) | (nan & 0x7FC0), Halves);
#endif
    }
    static void store(uint16_t* p, Floats v) { store_as(p, packed(v)); }
    static void stream(uint16_t* p, Floats v) { stream_as(p, packed(v)); }
    static float get(const uint16_t* p) {
        const uint32_t bits = uint32_t{*p} << 16;
        float v;
        __builtin_memcpy(&v, &bits, 4);
        return v;
    }
    static void put(uint16_t* p, float v) {
        uint32_t bits;
        __builtin_memcpy(&bits, &v, 4);
        *p = v != v ? 0x7FC0 : static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
    }
};

struct F16 {
    using Type = uint16_t;
    using Sum = float;
    using Vector = Floats;
    static float get(const uint16_t* p) {
#if defined(__F16C__)
        return _cvtsh_ss(*p);
#else
        const uint32_t h = *p, sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, fraction = h & 0x3FF;
        uint32_t bits;
        if (exponent == 31) {
            bits = sign | 0x7F800000u | fraction << 13;
        } else if (exponent) {
            bits = sign | (exponent + 112) << 23 | fraction << 13;
        } else {  // zero and subnormals are exact multiples of 2^-24
            const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
            return sign ? -magnitude : magnitude;
        }
        float v;
        __builtin_memcpy(&v, &bits, 4);
        return v;
#endif
    }
    static void put(uint16_t* p, float v) {
#if defined(__F16C__)
        *p = _cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT);
#else
        uint32_t bits;
        __builtin_memcpy(&bits, &v, 4);
        const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
        if (magnitude >= 0x7F800000u) {
            *p = static_cast<uint16_t>(sign | (magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u));
        } else if (magnitude >= 0x477FF000u) {  // rounds past the largest half
            *p = static_cast<uint16_t>(sign | 0x7C00u);
        } else if (magnitude >= 0x38800000u) {
            *p = static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1)) >> 13));
        } else {  // subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
            float scaled;
            __builtin_memcpy(&scaled, &magnitude, 4);
            scaled += 0.5f;
            uint32_t half;
            __builtin_memcpy(&half, &scaled, 4);
            *p = static_cast<uint16_t>(sign | (half - 0x3F000000u));
        }
#endif
    }
    static Floats load(const uint16_t* p) {
#if defined(__AVX512F__)
        return reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__)
        const __m256 halves[2] = {_mm256_cvtph_ps(load_as<__m128i>(p)), _mm256_cvtph_ps(load_as<__m128i>(p + 8))};
        return load_as<Floats>(halves);
#else
        Floats v;
        for (int i = 0; i < 16; ++i) v[i] = get(p + i);
        return v;
#endif
    }
    static void store(uint16_t* p, Floats v) {
#if defined(__AVX512F__)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                            _mm512_cvtps_ph(reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
        __m256 halves[2];
        __builtin_memcpy(halves, &v, 64);
        for (int i = 0; i < 2; ++i) store_as(p + 8 * i, _mm256_cvtps_ph(halves[i], _MM_FROUND_TO_NEAREST_INT));
#else
        for (int i = 0; i < 16; ++i) put(p + i, v[i]);
#endif
    }
    static void stream(uint16_t* p, Floats v) { store(p, v); }
};

template <class Body>
inline void with_element(Element element, Body body) {
    switch (element) {
        case Element::f32: return body(F32{});
        case Element::f64: return body(F64{});
        case Element::bf16: return body(BF16{});
        case Element::f16: return body(F16{});
    }
}

constexpr int kAhead = 32;  // rows requested before they are needed

// Where element `at` of an array would be, if there is one: an index that nobody has checked, for requests alone.
__attribute__((always_inline)) inline const void* unchecked(const void* array, int64_t at, int64_t bytes) {
    return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(array) + static_cast<uint64_t>(at) * static_cast<uint64_t>(bytes));
}

// Inlined by force: the compiler takes a function that only prefetches for one without effect, and drops the call.
__attribute__((always_inline)) inline void prefetch_row(const void* row, int64_t bytes) {
    const char* p = static_cast<const char*>(row);
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(p + b, 0, 2);  // to the second cache: the first has room for fewer
}

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
