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
constexpr int kTileRows = 8, kTileLanes = 3;
#elif defined(__AVX2__)
constexpr int kTileRows = 4, kTileLanes = 3;
#else
constexpr int kTileRows = 4, kTileLanes = 2;
#endif

// Element (i, k) of the left matrix is a[i * row + k * step].
struct Left {
    const float* a;
    int64_t row, step;
};

template <int Rows, int Across>
HEADRACE_INLINE void product_tile(Left left, const float* b, int64_t b_stride, int64_t depth, float* c, int64_t c_stride) {
    Lane sum[Rows][Across] = {};
    for (int64_t k = 0; k < depth; ++k) {
        Lane right[Across];
        for (int j = 0; j < Across; ++j) right[j] = load_as<Lane>(b + k * b_stride + j * kLanes);
        for (int i = 0; i < Rows; ++i) {
            const Lane one = Lane{} + left.a[i * left.row + k * left.step];
            for (int j = 0; j < Across; ++j) sum[i][j] = fused(one, right[j], sum[i][j]);
        }
    }
    for (int i = 0; i < Rows; ++i)
        for (int j = 0; j < Across; ++j) store_as(c + i * c_stride + j * kLanes, sum[i][j]);
}

template <int Across>
void product_panel(Left left, const float* b, int64_t b_stride, int64_t depth, int64_t rows, float* c, int64_t c_stride) {
    int64_t i = 0;
    const auto at = [&](int64_t row) { return Left{left.a + row * left.row, left.row, left.step}; };
    for (; i + kTileRows <= rows; i += kTileRows)
        product_tile<kTileRows, Across>(at(i), b, b_stride, depth, c + i * c_stride, c_stride);
    if constexpr (kTileRows > 4)
        for (; i + 4 <= rows; i += 4) product_tile<4, Across>(at(i), b, b_stride, depth, c + i * c_stride, c_stride);
    for (; i < rows; ++i) product_tile<1, Across>(at(i), b, b_stride, depth, c + i * c_stride, c_stride);
}

// c = left b, of `rows` rows and `columns` columns, a multiple of 16.
inline void product(Left left, const float* b, int64_t b_stride, int64_t depth, int64_t rows, int64_t columns, float* c,
                    int64_t c_stride) {
    int64_t j = 0;
    for (; j + kTileLanes * kLanes <= columns; j += kTileLanes * kLanes)
        product_panel<kTileLanes>(left, b + j, b_stride, depth, rows, c + j, c_stride);
    if constexpr (kTileLanes > 2)
        for (; j + 2 * kLanes <= columns; j += 2 * kLanes)
            product_panel<2>(left, b + j, b_stride, depth, rows, c + j, c_stride);
    for (; j < columns; j += kLanes) product_panel<1>(left, b + j, b_stride, depth, rows, c + j, c_stride);
}

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
