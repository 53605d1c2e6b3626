// Rows of an edge: queries, their gradients, sums of gradients and what Adagrad makes of them. No fused operations: queries and
// gradients have the bits of the same formulas in PyTorch. Compiled once per instruction set: see vector.h.
#include "vector_wide.h"

namespace headrace::HEADRACE_LEVEL {

void join(Joined kind, const float* row, const float* relation, bool inverse, int64_t width, float* __restrict out) {
    if (kind == Joined::dot) {
        __builtin_memcpy(out, row, static_cast<size_t>(width) * 4);
        return;
    }
    if (kind == Joined::distmult) {
        for (int64_t j = 0; j < width; ++j) out[j] = row[j] * relation[j];
        return;
    }
    const int64_t half = width / 2;
    const float sign = inverse ? -1.0f : 1.0f;
    const float *a = row, *b = row + half, *c = relation, *d = relation + half;
    float *real = out, *imaginary = out + half;
    for (int64_t j = 0; j < half; ++j) {
        const float turn = sign * d[j];
        real[j] = a[j] * c[j] - b[j] * turn;
        imaginary[j] = a[j] * turn + b[j] * c[j];
    }
}

void join_gradient(Joined kind, const float* grad, const float* row, const float* relation, bool inverse, int64_t width,
                   float* __restrict to_row, float* __restrict to_relation, bool add) {
    if (kind == Joined::dot) {
        __builtin_memcpy(to_row, grad, static_cast<size_t>(width) * 4);
        return;
    }
    if (kind == Joined::distmult) {
        for (int64_t j = 0; j < width; ++j) to_row[j] = grad[j] * relation[j];
        if (add)
            for (int64_t j = 0; j < width; ++j) to_relation[j] += grad[j] * row[j];
        else
            for (int64_t j = 0; j < width; ++j) to_relation[j] = grad[j] * row[j];
        return;
    }
    const int64_t half = width / 2;
    const float sign = inverse ? -1.0f : 1.0f;
    const float *a = row, *b = row + half, *c = relation, *d = relation + half, *real = grad, *imaginary = grad + half;
    for (int64_t j = 0; j < half; ++j) {
        const float turn = sign * d[j];
        to_row[j] = real[j] * c[j] + imaginary[j] * turn;
        to_row[half + j] = imaginary[j] * c[j] - real[j] * turn;
        const float to_real = real[j] * a[j] + imaginary[j] * b[j];
        const float to_imaginary = sign * (imaginary[j] * a[j] - real[j] * b[j]);
        to_relation[j] = add ? to_relation[j] + to_real : to_real;
        to_relation[half + j] = add ? to_relation[half + j] + to_imaginary : to_imaginary;
    }
}

void add_row(float* __restrict row, const float* __restrict other, const float* by, int64_t width) {
    if (!by) {
        for (int64_t j = 0; j < width; ++j) row[j] += other[j];
        return;
    }
    const float scale = *by;
    for (int64_t j = 0; j < width; ++j) row[j] += scale * other[j];
}

void adagrad(const float* grad, const float* state, bool by_row, float lr, float eps, int64_t width, float* __restrict delta,
             float* __restrict squares) {
    if (!by_row) {
        for (int64_t j = 0; j < width; ++j) {
            const float square = grad[j] * grad[j];
            squares[j] = square;
            delta[j] = -lr * grad[j] / (__builtin_sqrtf(state[j] + square) + eps);
        }
        return;
    }
    using V = Wide<float, 64>;
    V sum{};
    int64_t j = 0;
    for (; j + 16 <= width; j += 16) sum += V::load(grad + j) * V::load(grad + j);
    const Wide<float, 32> eight = low(sum) + high(sum);
    Wide<float, 16> four = low(eight) + high(eight);
    four += swap_twos(four);
    four += swap_ones(four);
    float total = four.part[0][0];
    for (; j < width; ++j) total += grad[j] * grad[j];
    const float square = total / static_cast<float>(width), scale = -lr / (__builtin_sqrtf(*state + square) + eps);
    *squares = square;
    for (j = 0; j < width; ++j) delta[j] = scale * grad[j];
}

}  // namespace headrace::HEADRACE_LEVEL
