// What attention over events and its gradients share: the rows of a tile of entries, made in scratch, and sums over them. For
// vector_*.cpp alone.
//
// Rows in scratch have a length that is a multiple of a vector's, with zeros behind their end, so that no loop has a rest.
#pragma once

#include "vector_cosine.h"
#include "vector_philox.h"
#include "vector_softmax.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

constexpr int64_t kEvents = 32;  // entries of a tile

// The sum of a vector's lanes, in a fixed order.
template <class S>
HEADRACE_INLINE S lane_sum(Wide<S, 64> v) {
    const auto half = low(v) + high(v);
    const auto quarter = low(half) + high(half);
    S sum = 0;
    for (int l = 0; l < quarter.kPartLanes; ++l) sum += quarter.part[0][l];
    return sum;
}

template <class E>
struct EventWork {
    using S = typename E::Sum;
    using V = Wide<S, 64>;
    static constexpr int64_t L = V::kLanes;
    static int64_t padded(int64_t count) { return (count + L - 1) / L * L; }

    const TimeAttention& in;
    Arena arena;
    const int64_t before, width, stride, time_stride, heads;  // columns before the times, and all; lengths of rows in scratch
    double most_weight = 0, most_bias = 0;                    // of the time encoding, in magnitude
    S *rows, *sines;                          // [kEvents, stride], [kEvents, time_stride]
    S *weight, *bias;                         // [time_stride]
    S *query, *grad, *out, *sum;              // [heads, stride]
    S *score, *keep, *slant;                  // [heads, kEvents]
    S *peak, *total, *delta;                  // [heads]
    S *to_weight, *to_bias;                   // [time_stride]
    S dt[kEvents];

    EventWork(const TimeAttention& in_, char* scratch)
        : in(in_), arena(scratch), before(in.channels + in.edge_channels), width(in.width()),
          stride(padded(before + padded(in.times))), time_stride(padded(in.times)), heads(in.heads) {
        rows = arena.take<S>(kEvents * stride), sines = arena.take<S>(kEvents * time_stride);
        weight = arena.take<S>(time_stride), bias = arena.take<S>(time_stride);
        query = arena.take<S>(heads * stride), grad = arena.take<S>(heads * stride);
        out = arena.take<S>(heads * stride), sum = arena.take<S>(heads * stride);
        score = arena.take<S>(heads * kEvents), keep = arena.take<S>(heads * kEvents), slant = arena.take<S>(heads * kEvents);
        peak = arena.take<S>(heads), total = arena.take<S>(heads), delta = arena.take<S>(heads);
        to_weight = arena.take<S>(time_stride), to_bias = arena.take<S>(time_stride);
        if (!scratch) return;
        for (int64_t j = 0; j < in.times; ++j) {
            weight[j] = static_cast<const S*>(in.weight)[j];
            bias[j] = static_cast<const S*>(in.bias)[j];
            const double w = __builtin_fabs(static_cast<double>(weight[j])), b = __builtin_fabs(static_cast<double>(bias[j]));
            most_weight = most_weight < w || w != w ? w : most_weight;
            most_bias = most_bias < b || b != b ? b : most_bias;
        }
    }

    // Row v of each head of an array [heads, rows, width], to scratch.
    void load(const void* from, int64_t v, S* to) const {
        for (int64_t h = 0; h < heads; ++h)
            __builtin_memcpy(to + h * stride, static_cast<const S*>(from) + (h * in.rows + v) * width,
                             static_cast<size_t>(width) * sizeof(S));
    }
    void store(const S* from, int64_t v, void* to) const {
        for (int64_t h = 0; h < heads; ++h)
            __builtin_memcpy(static_cast<S*>(to) + (h * in.rows + v) * width, from + h * stride,
                             static_cast<size_t>(width) * sizeof(S));
    }
    void clear(S* to) const { __builtin_memset(to, 0, static_cast<size_t>(heads * stride) * sizeof(S)); }

    // cos(weight * dt + bias) of a tile's entry k to its row, and the sines if they are wanted.
    template <bool with_sines>
    void encode(int64_t k) {
        S* cosines = rows + k * stride + before;
        const double far = __builtin_fabs(static_cast<double>(dt[k])) * most_weight + most_bias;
        if (__builtin_expect(far < kLargestAngle, 1)) {
            const V time = V::all(dt[k]);
            for (int64_t j = 0; j < time_stride; j += L) {
                const SineCosine<S> both = sine_cosine(V::load(weight + j) * time + V::load(bias + j));
                both.cosine.store(cosines + j);
                if (with_sines) both.sine.store(sines + k * time_stride + j);
            }
        } else {
            for (int64_t j = 0; j < in.times; ++j) {
                const S angle = weight[j] * dt[k] + bias[j];
                cosines[j] = static_cast<S>(__builtin_cos(static_cast<double>(angle)));
                if (with_sines) sines[k * time_stride + j] = static_cast<S>(__builtin_sin(static_cast<double>(angle)));
            }
        }
        for (int64_t j = width; j < stride; ++j) rows[k * stride + j] = 0;
    }

    // The rows of entries [begin, begin + count); false on an index out of range.
    template <bool with_sines>
    bool fill(int64_t begin, int64_t count) {
        const int64_t row_bytes = in.channels * static_cast<int64_t>(sizeof(S));
        const int64_t edge_bytes = in.edge_channels * static_cast<int64_t>(sizeof(S));
        const char *far[kEvents], *edge[kEvents];
        for (int64_t k = 0; k < count; ++k) {
            const int64_t node = in.indices[begin + k], id = in.edge_id ? in.edge_id[begin + k] : begin + k;
            if (static_cast<uint64_t>(node) >= static_cast<uint64_t>(in.columns)) return false;
            if (in.edge_x && static_cast<uint64_t>(id) >= static_cast<uint64_t>(in.edges)) return false;
            far[k] = static_cast<const char*>(in.x) + node * row_bytes;
            prefetch_row(far[k], row_bytes);
            if (!in.edge_x) continue;
            edge[k] = static_cast<const char*>(in.edge_x) + id * edge_bytes;
            prefetch_row(edge[k], edge_bytes);
        }
        for (int64_t k = 0; k < count; ++k) {
            if (row_bytes) __builtin_memcpy(rows + k * stride, far[k], static_cast<size_t>(row_bytes));
            if (in.edge_x && edge_bytes) __builtin_memcpy(rows + k * stride + in.channels, edge[k], static_cast<size_t>(edge_bytes));
            dt[k] = static_cast<const S*>(in.dt)[begin + k];
            encode<with_sines>(k);
        }
        return true;
    }

    // table[h, k] = <with[h], row k>, each dot in the same order whatever its neighbors are.
    void dots(const S* with, int64_t count, S* table) const {
        for (int64_t h = 0; h < heads; ++h) {
            const S* near = with + h * stride;
            int64_t k = 0;
            const auto together = [&]<int N>(Constant<N>) {
                V sums[N]{};
                const S* row = rows + k * stride;
                for (int64_t j = 0; j < stride; j += L) {
                    const V own = V::load(near + j);
                    for (int i = 0; i < N; ++i) sums[i] += own * V::load(row + i * stride + j);
                }
                for (int i = 0; i < N; ++i) table[h * kEvents + k + i] = lane_sum(sums[i]);
                k += N;
            };
            while (k + 4 <= count) together(Constant<4>{});
            while (k < count) together(Constant<1>{});
        }
    }

    // sum[h] += table[h, k] * row k, entries in order.
    void add(const S* table, int64_t count, S* to) const {
        for (int64_t h = 0; h < heads; ++h) {
            S* out = to + h * stride;
            int64_t j = 0;
            const auto together = [&]<int N>(Constant<N>) {
                V sums[N];
                for (int i = 0; i < N; ++i) sums[i] = V::load(out + j + i * L);
                for (int64_t k = 0; k < count; ++k) {
                    const V by = V::all(table[h * kEvents + k]);
                    for (int i = 0; i < N; ++i) sums[i] += by * V::load(rows + k * stride + j + i * L);
                }
                for (int i = 0; i < N; ++i) sums[i].store(out + j + i * L);
                j += N * L;
            };
            while (j + 4 * L <= stride) together(Constant<4>{});
            while (j < stride) together(Constant<1>{});
        }
    }

    // What dropout multiplies each coefficient by: word `head % 4` of the block (head / 4, position) decides.
    void draw(int64_t begin, int64_t count) const {
        const S kept = static_cast<S>(in.kept);
        uint32_t words[32];
        for (int64_t block = 0; 4 * block < heads; ++block)
            for (int64_t k = 0; k < count; k += 8) {
                Counters counters;
                for (int64_t i = 0; i < 8; ++i) {
                    const uint64_t position = static_cast<uint64_t>(begin + k + i);
                    counters.first[i] = static_cast<uint64_t>(block);
                    counters.second[i] = position & 0xFFFFFFFFu;
                    counters.third[i] = position >> 32;
                }
                philox8(in.key, 0, counters, words);
                for (int64_t h = 4 * block; h < 4 * block + 4 && h < heads; ++h)
                    for (int64_t i = 0; i < 8; ++i)
                        keep[h * kEvents + k + i] = words[4 * i + h % 4] < in.dropped ? S{0} : kept;
            }
    }

    // Begin and end of row v; false if indptr is wrong there.
    bool span(int64_t v, int64_t& begin, int64_t& end) const {
        begin = in.indptr[v], end = in.indptr[v + 1];
        return begin >= 0 && begin <= end && end <= in.count;
    }
};

template <class Body>
inline bool with_real(Element element, Body body) {  // rows are of one of these two
    return element == Element::f64 ? body(F64{}) : body(F32{});
}

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
