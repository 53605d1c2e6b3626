#include "limits.h"

#include <cstring>

#include "common.h"

namespace headrace {

BareSample bare_sample(const int64_t* indptr, const int32_t* indices, int32_t* stamp, const int64_t* seeds,
                       int64_t num_seeds, const int32_t* fanouts, int hops, int32_t* sources, int32_t* targets,
                       int64_t* nodes, uint64_t seed) {
    constexpr int64_t group = 16;
    int64_t count = 0, edges = 0, begin = 0;
    uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
    const auto random_below = [&](uint64_t bound) {  // xorshift64*
        state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
        const uint64_t word = state * 2685821657736338717ull;
        return static_cast<int64_t>((static_cast<unsigned __int128>(word) * bound) >> 64);
    };
    for (int64_t i = 0; i < num_seeds; ++i) stamp[seeds[i]] = static_cast<int32_t>(count), nodes[count++] = seeds[i];
    for (int hop = 0; hop < hops; ++hop) {
        const int64_t end = count, fanout = fanouts[hop];
        for (int64_t from = begin; from < end; from += group) {
            const int64_t to = std::min(from + group, end), first = edges;
            for (int64_t i = from; i < to; ++i)
                if (i + 2 * group < end) prefetch(indptr + nodes[i + 2 * group]);
            int64_t position[group * 64], drawn = 0;
            for (int64_t i = from; i < to; ++i) {
                const int64_t low = indptr[nodes[i]], degree = indptr[nodes[i] + 1] - low;
                if (degree <= fanout) {
                    for (int64_t j = 0; j < degree; ++j)
                        position[drawn] = low + j, targets[first + drawn++] = static_cast<int32_t>(i);
                    continue;
                }
                const int64_t mine = drawn;
                for (int64_t j = degree - fanout; j < degree; ++j) {
                    int64_t r = random_below(static_cast<uint64_t>(j) + 1);
                    for (int64_t q = mine; q < drawn; ++q)
                        if (position[q] == low + r) {
                            r = j;
                            break;
                        }
                    position[drawn] = low + r, targets[first + drawn++] = static_cast<int32_t>(i);
                }
            }
            for (int64_t q = 0; q < drawn; ++q) prefetch(indices + position[q]);
            for (int64_t q = 0; q < drawn; ++q) {
                sources[first + q] = indices[position[q]];
                prefetch(stamp + sources[first + q]);
            }
            for (int64_t q = 0; q < drawn; ++q) {
                const int32_t node = sources[first + q];
                int32_t local = stamp[node];
                if (local < 0) local = stamp[node] = static_cast<int32_t>(count), nodes[count++] = node;
                sources[first + q] = local;
            }
            edges += drawn;
        }
        begin = end;
    }
    for (int64_t i = 0; i < count; ++i) stamp[nodes[i]] = -1;
    return {count, edges};
}

void bare_gather(char* out, const char* rows, int64_t row_bytes, const int64_t* ids, int64_t count, int threads) {
    constexpr int64_t ahead = 12;
    threads = useful_threads(threads, threads, 1);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; ++i) {
        if (i + ahead < count)
            for (int64_t b = 0; b < row_bytes; b += 64) prefetch(rows + ids[i + ahead] * row_bytes + b);
        std::memcpy(out + i * row_bytes, rows + ids[i] * row_bytes, static_cast<size_t>(row_bytes));
    }
}

namespace {

// Compiled for the widest registers of the machine, like the kernels: a limit must not be an easy one.
#if defined(__x86_64__)
#define HEADRACE_WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HEADRACE_WIDEST
#endif

constexpr int64_t kWidth = kBareWidth, kBareAhead = 24;

inline void request_row(const char* x, int64_t id, int64_t bytes) {
    for (int64_t b = 0; b < bytes; b += 64) prefetch(x + id * bytes + b);
}

HEADRACE_WIDEST void sum_f32(char* out, const char* x, const int32_t* indices, int64_t from, int64_t to, int64_t entries) {
    float sum[kWidth] = {};
    for (int64_t e = from; e < to; ++e) {
        if (e + kBareAhead < entries) request_row(x, indices[e + kBareAhead], kWidth * 4);
        const float* row = reinterpret_cast<const float*>(x) + static_cast<int64_t>(indices[e]) * kWidth;
        for (int64_t j = 0; j < kWidth; ++j) sum[j] += row[j];
    }
    std::memcpy(out, sum, sizeof(sum));
}

HEADRACE_WIDEST void sum_bf16(char* out, const char* x, const int32_t* indices, int64_t from, int64_t to, int64_t entries) {
    float sum[kWidth] = {};
    for (int64_t e = from; e < to; ++e) {
        if (e + kBareAhead < entries) request_row(x, indices[e + kBareAhead], kWidth * 2);
        const uint16_t* row = reinterpret_cast<const uint16_t*>(x) + static_cast<int64_t>(indices[e]) * kWidth;
        for (int64_t j = 0; j < kWidth; ++j) sum[j] += __builtin_bit_cast(float, static_cast<uint32_t>(row[j]) << 16);
    }
    uint16_t* to_row = reinterpret_cast<uint16_t*>(out);
    for (int64_t j = 0; j < kWidth; ++j)
        to_row[j] = static_cast<uint16_t>((__builtin_bit_cast(uint32_t, sum[j]) + 0x8000u) >> 16);
}

}  // namespace

void bare_sum(char* out, const char* x, bool bf16, const int64_t* indptr, const int32_t* indices, int64_t rows,
              int threads) {
    const int64_t bytes = kWidth * (bf16 ? 2 : 4);
    threads = useful_threads(threads, threads, 1);
#pragma omp parallel for schedule(dynamic, 256) num_threads(threads)
    for (int64_t v = 0; v < rows; ++v)
        (bf16 ? sum_bf16 : sum_f32)(out + v * bytes, x, indices, indptr[v], indptr[v + 1], indptr[rows]);
}

}  // namespace headrace
