// Products of small matrices, for vector_*.cpp alone. Each element is summed by one chain of fused multiply-adds in the order of
// the inner dimension, so its bits depend neither on how the matrix is cut into tiles nor on how wide registers are. (An instruction
// set without fused operations rounds twice a step.)
#pragma once

#include "vector_wide.h"

#if defined(__ARM_FEATURE_FMA)
#include <arm_neon.h>
#endif

namespace headrace::HEADRACE_LEVEL {
namespace {

typedef float Lane __attribute__((vector_size(kRegister)));
constexpr int kLanes = kRegister / 4;

HEADRACE_INLINE Lane fused(Lane a, Lane b, Lane sum) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, sum);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, sum);
#elif defined(__ARM_FEATURE_FMA)
    return vfmaq_f32(sum, a, b);
#else
    return sum + a * b;
#endif
}

// As many sums as registers hold beside a row of b.
#if defined(__AVX512F__)
constexpr int kTileRows = 4, kTileLanes = 6;
#elif defined(__AVX2__)
constexpr int kTileRows = 3, kTileLanes = 4;
#else
constexpr int kTileRows = 4, kTileLanes = 2;
#endif

// Element (i, k) of the left matrix is a[i * row + k * step].
struct Left {
    const float* a;
    int64_t row, step;
    Left at(int64_t i) const { return {a + i * row, row, step}; }
};

// With `Half`, eight columns behind those of `Across` registers, which are two halves each.
template <int Rows, int Across, bool Half>
HEADRACE_INLINE void product_tile(Left left, const float* b, int64_t b_stride, int64_t depth, float* c, int64_t c_stride) {
    Lane sum[Rows][Across + 1] = {};
    Floats8 rest[Rows] = {};
    for (int64_t k = 0; k < depth; ++k, b += b_stride) {
        Lane left_of[Rows];
        for (int i = 0; i < Rows; ++i) left_of[i] = left.a[i * left.row + k * left.step] - Lane{};  // broadcast
        for (int j = 0; j < Across; ++j) {
            const Lane right = load_as<Lane>(b + j * kLanes);
            for (int i = 0; i < Rows; ++i) sum[i][j] = fused(left_of[i], right, sum[i][j]);
        }
#if defined(__AVX512F__)
        if constexpr (Half) {
            const Floats8 right = load_as<Floats8>(b + Across * kLanes);
            for (int i = 0; i < Rows; ++i) rest[i] = _mm256_fmadd_ps(low(left_of[i]), right, rest[i]);
        }
#endif
    }
    for (int i = 0; i < Rows; ++i, c += c_stride) {
        for (int j = 0; j < Across; ++j) store_as(c + j * kLanes, sum[i][j]);
        if constexpr (Half) store_as(c + Across * kLanes, rest[i]);
    }
}

template <int Across, bool Half>
void product_panel(Left left, const float* b, int64_t b_stride, int64_t depth, int64_t rows, float* c, int64_t c_stride) {
    int64_t i = 0;
    for (; i + kTileRows <= rows; i += kTileRows)
        product_tile<kTileRows, Across, Half>(left.at(i), b, b_stride, depth, c + i * c_stride, c_stride);
    for (; i < rows; ++i) product_tile<1, Across, Half>(left.at(i), b, b_stride, depth, c + i * c_stride, c_stride);
}

// Panels of `lanes` registers, at most `Across`, and of eight columns more if `half`.
template <int Across, class... Given>
HEADRACE_INLINE void product_lanes(int64_t lanes, bool half, Given... given) {
    if constexpr (Across > 0)
        if (lanes < Across) return product_lanes<Across - 1>(lanes, half, given...);
    if constexpr (kLanes > 8)
        if (half) return product_panel<Across, true>(given...);
    if constexpr (Across > 0) product_panel<Across, false>(given...);
}

// c = left b, of `rows` rows and `columns` columns, a multiple of 8, in panels as alike as can be.
inline void product(Left left, const float* b, int64_t b_stride, int64_t depth, int64_t rows, int64_t columns, float* c,
                    int64_t c_stride) {
    int64_t panels = (columns / kLanes + kTileLanes - 1) / kTileLanes;
    panels = panels ? panels : 1;
    for (; panels > 0; --panels) {
        const int64_t lanes = (columns / kLanes + panels - 1) / panels;
        const bool half = panels == 1 && columns % kLanes;
        product_lanes<kTileLanes>(lanes, half, left, b, b_stride, depth, rows, c, c_stride);
        b += lanes * kLanes;
        c += lanes * kLanes;
        columns -= lanes * kLanes;
    }
}

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
