// Vectors of 64, 32 or 16 bytes as the registers of this instruction set hold them. For vector_*.cpp alone, as vector_elements.h.
//
// GCC keeps a vector type that is wider than the registers in memory, and every operation on it goes there and back. Here it is cut
// into parts that fit. Lane by lane the operations are the same, and so are the results.
#pragma once

#include "vector_elements.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

// GCC does not inline all of these by itself, and a call would pass the vectors through memory.
#define HEADRACE_INLINE __attribute__((always_inline)) inline

#if defined(__AVX512F__)
constexpr int kRegister = 64;
#elif defined(__AVX2__)
constexpr int kRegister = 32;
#else
constexpr int kRegister = 16;
#endif

template <int N>
struct Constant {};

template <class S>
struct IntegerLike;  // of the same size
template <>
struct IntegerLike<float> {
    using Type = int32_t;
};
template <>
struct IntegerLike<double> {
    using Type = int64_t;
};

template <class S, int Bytes>
struct Wide {
    static constexpr int kPart = Bytes < kRegister ? Bytes : kRegister, kParts = Bytes / kPart;
    static constexpr int kLanes = Bytes / sizeof(S), kPartLanes = kPart / sizeof(S);
    typedef S Part __attribute__((vector_size(kPart)));
    Part part[kParts];

    HEADRACE_INLINE static Wide load(const S* p) {
        Wide v;
        for (int i = 0; i < kParts; ++i) v.part[i] = load_as<Part>(p + i * kPartLanes);
        return v;
    }
    HEADRACE_INLINE static Wide all(S number) {
        Wide v;
        for (int i = 0; i < kParts; ++i) v.part[i] = number - Part{};  // one broadcast; lane by lane, GCC 12 makes sixteen
        return v;
    }
    HEADRACE_INLINE void store(S* p) const {
        for (int i = 0; i < kParts; ++i) store_as(p + i * kPartLanes, part[i]);
    }
};

// f(part, part...) for the parts of vectors of one size, or f of a single number.
template <class F, class S, int B>
HEADRACE_INLINE Wide<S, B> each(F f, Wide<S, B> a) {
    for (int i = 0; i < Wide<S, B>::kParts; ++i) a.part[i] = f(a.part[i]);
    return a;
}
template <class F, class S, int B>
HEADRACE_INLINE Wide<S, B> each(F f, Wide<S, B> a, Wide<S, B> b) {
    for (int i = 0; i < Wide<S, B>::kParts; ++i) a.part[i] = f(a.part[i], b.part[i]);
    return a;
}
HEADRACE_INLINE float each(auto f, float a) { return f(a); }
HEADRACE_INLINE double each(auto f, double a) { return f(a); }

template <class S, int B>
HEADRACE_INLINE Wide<S, B> operator+(Wide<S, B> a, Wide<S, B> b) {
    return each([](auto x, auto y) { return x + y; }, a, b);
}
template <class S, int B>
HEADRACE_INLINE Wide<S, B> operator-(Wide<S, B> a, Wide<S, B> b) {
    return each([](auto x, auto y) { return x - y; }, a, b);
}
template <class S, int B>
HEADRACE_INLINE Wide<S, B> operator*(Wide<S, B> a, Wide<S, B> b) {
    return each([](auto x, auto y) { return x * y; }, a, b);
}
template <class S, int B>
HEADRACE_INLINE Wide<S, B>& operator+=(Wide<S, B>& a, Wide<S, B> b) {
    return a = a + b;
}
template <class S, int B>
HEADRACE_INLINE Wide<S, B>& operator*=(Wide<S, B>& a, Wide<S, B> b) {
    return a = a * b;
}
template <class S, int B>
HEADRACE_INLINE Wide<S, B> larger(Wide<S, B> a, Wide<S, B> b) {  // b, where one is NaN
    return each([](auto x, auto y) { return x > y ? x : y; }, a, b);
}
template <class V, class S>
HEADRACE_INLINE V leaky(V z, S slope) {
    return each([slope](auto x) { return x > 0 ? x : x * slope; }, z);
}
template <class V, class S>
HEADRACE_INLINE V leaky_rise(V z, S slope) {  // its derivative
    return each([slope](auto x) {
        using X = decltype(x);
        return x > 0 ? X{} + 1 : X{} + slope;
    }, z);
}
// v where the bits at `mask` are set, else 0.
template <class S, int B>
HEADRACE_INLINE Wide<S, B> masked(Wide<S, B> v, const S* mask) {
    typedef int32_t Bits __attribute__((vector_size(Wide<S, B>::kPart)));
    for (int i = 0; i < Wide<S, B>::kParts; ++i)
        v.part[i] = reinterpret_cast<typename Wide<S, B>::Part>(reinterpret_cast<Bits>(v.part[i]) &
                                                                load_as<Bits>(mask + i * Wide<S, B>::kPartLanes));
    return v;
}

// Halves of a register, and a register of two equal halves.
typedef float Floats8 __attribute__((vector_size(32)));
typedef float Floats4 __attribute__((vector_size(16)));
typedef double Doubles4 __attribute__((vector_size(32)));
typedef double Doubles2 __attribute__((vector_size(16)));
HEADRACE_INLINE Floats8 low(Floats v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7); }
HEADRACE_INLINE Floats8 high(Floats v) { return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15); }
HEADRACE_INLINE Doubles4 low(Doubles v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3); }
HEADRACE_INLINE Doubles4 high(Doubles v) { return __builtin_shufflevector(v, v, 4, 5, 6, 7); }
HEADRACE_INLINE Floats4 low(Floats8 v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3); }
HEADRACE_INLINE Floats4 high(Floats8 v) { return __builtin_shufflevector(v, v, 4, 5, 6, 7); }
HEADRACE_INLINE Doubles2 low(Doubles4 v) { return __builtin_shufflevector(v, v, 0, 1); }
HEADRACE_INLINE Doubles2 high(Doubles4 v) { return __builtin_shufflevector(v, v, 2, 3); }
HEADRACE_INLINE Floats twice(Floats8 v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7); }
HEADRACE_INLINE Floats8 twice(Floats4 v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3, 0, 1, 2, 3); }
HEADRACE_INLINE Doubles twice(Doubles4 v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3, 0, 1, 2, 3); }
HEADRACE_INLINE Doubles4 twice(Doubles2 v) { return __builtin_shufflevector(v, v, 0, 1, 0, 1); }

template <class S, int B>
HEADRACE_INLINE Wide<S, B / 2> low(Wide<S, B> v) {
    Wide<S, B / 2> half;
    if constexpr (Wide<S, B>::kParts == 1)
        half.part[0] = low(v.part[0]);
    else
        for (int i = 0; i < half.kParts; ++i) half.part[i] = v.part[i];
    return half;
}
template <class S, int B>
HEADRACE_INLINE Wide<S, B / 2> high(Wide<S, B> v) {
    Wide<S, B / 2> half;
    if constexpr (Wide<S, B>::kParts == 1)
        half.part[0] = high(v.part[0]);
    else
        for (int i = 0; i < half.kParts; ++i) half.part[i] = v.part[half.kParts + i];
    return half;
}
template <class S, int B>
HEADRACE_INLINE Wide<S, 2 * B> twice(Wide<S, B> v) {
    Wide<S, 2 * B> both;
    if constexpr (Wide<S, 2 * B>::kParts == 1)
        both.part[0] = twice(v.part[0]);
    else
        for (int i = 0; i < both.kParts; ++i) both.part[i] = v.part[i % v.kParts];
    return both;
}

// Lane l and lane l ^ 1, or l ^ 2.
HEADRACE_INLINE Wide<float, 16> swap_ones(Wide<float, 16> v) {
    return {{__builtin_shufflevector(v.part[0], v.part[0], 1, 0, 3, 2)}};
}
HEADRACE_INLINE Wide<float, 16> swap_twos(Wide<float, 16> v) {
    return {{__builtin_shufflevector(v.part[0], v.part[0], 2, 3, 0, 1)}};
}
HEADRACE_INLINE Wide<double, 16> swap_ones(Wide<double, 16> v) { return {{__builtin_shufflevector(v.part[0], v.part[0], 1, 0)}}; }

// The four sums of four vectors' lanes, or the two of two's.
HEADRACE_INLINE Wide<float, 16> across(const Wide<float, 16>* v) {
    const Floats4 a = v[0].part[0], b = v[1].part[0], c = v[2].part[0], d = v[3].part[0];
    const Floats4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const Floats4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
    return {{__builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7)}};
}
HEADRACE_INLINE Wide<double, 16> across(const Wide<double, 16>* v) {
    const Doubles2 a = v[0].part[0], b = v[1].part[0];
    return {{__builtin_shufflevector(a, b, 0, 2) + __builtin_shufflevector(a, b, 1, 3)}};
}

// Sums, as many as V has lanes, or a single one.
template <class V, class S>
HEADRACE_INLINE V load_sums(const S* p) {
    if constexpr (sizeof(V) == sizeof(S))
        return *p;
    else
        return V::load(p);
}

// Elements, likewise.
template <class E, class V>
HEADRACE_INLINE V load_lanes(const typename E::Type* p) {
    using S = typename E::Sum;
    if constexpr (sizeof(V) == sizeof(S)) {
        return E::get(p);
    } else if constexpr (sizeof(typename E::Type) == sizeof(S)) {
        return V::load(p);
    } else {
        constexpr int N = V::kPartLanes;
        V v;
        for (int i = 0; i < V::kParts; ++i) {
            const typename E::Type* from = p + i * N;
            if constexpr (N == 16) {
                v.part[i] = E::load(from);
#if defined(__AVX2__)
            } else if constexpr (__is_same(E, BF16) && N == 8) {  // GCC 12 would convert it in halves
                v.part[i] = reinterpret_cast<Floats8>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_as<__m128i>(from)), 16));
#endif
            } else if constexpr (__is_same(E, BF16)) {
                typedef uint16_t Short __attribute__((vector_size(2 * N)));
                typedef uint32_t Long __attribute__((vector_size(4 * N)));
                v.part[i] = reinterpret_cast<typename V::Part>(__builtin_convertvector(load_as<Short>(from), Long) << 16);
#if defined(__F16C__)
            } else if constexpr (N == 8) {
                v.part[i] = reinterpret_cast<Floats8>(_mm256_cvtph_ps(load_as<__m128i>(from)));
            } else {
                v.part[i] = reinterpret_cast<Floats4>(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
            } else {
                for (int l = 0; l < N; ++l) v.part[i][l] = E::get(from + l);
#endif
            }
        }
        return v;
    }
}

template <class E>
HEADRACE_INLINE void store_lanes(typename E::Type* p, Wide<typename E::Sum, 64> v) {
    if constexpr (sizeof(typename E::Type) == sizeof(typename E::Sum)) {
        v.store(p);
    } else {
        typename E::Vector elements;
        __builtin_memcpy(&elements, &v, 64);
        E::store(p, elements);
    }
}

// Past the caches, to an address that is a multiple of the elements' size in bytes.
template <class E>
HEADRACE_INLINE void stream_lanes(typename E::Type* p, Wide<typename E::Sum, 64> v) {
    if constexpr (sizeof(typename E::Type) == sizeof(typename E::Sum)) {
        for (int i = 0; i < v.kParts; ++i) stream_as(p + i * v.kPartLanes, v.part[i]);
    } else {
        typename E::Vector elements;
        __builtin_memcpy(&elements, &v, 64);
        E::stream(p, elements);
    }
}

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
