// The softmax of tables (vector_heads.h says what those are), without a call per number. For vector_*.cpp alone.
#pragma once

#include "vector_heads.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

template <class S>
struct ExpConstants;
template <>
struct ExpConstants<float> {
    static constexpr float kLog2E = 1.44269504f, kHigh = 0.693359375f, kLow = -2.12194440e-4f, kRound = 12582912.0f, kLeast = -87.0f;
    static constexpr int kTerms = 7, kShift = 23, kBias = 127;
};
template <>
struct ExpConstants<double> {
    static constexpr double kLog2E = 1.4426950408889634, kHigh = 6.93145751953125e-1, kLow = 1.42860682030941723212e-6,
                            kRound = 6755399441055744.0, kLeast = -708.0;
    static constexpr int kTerms = 13, kShift = 52, kBias = 1023;
};

template <class S>
struct Series {  // 1 / i!
    S coefficient[ExpConstants<S>::kTerms + 1];
    constexpr Series() : coefficient{} {
        double factorial = 1;
        for (int i = 0; i <= ExpConstants<S>::kTerms; factorial *= ++i) coefficient[i] = static_cast<S>(1 / factorial);
    }
};

// exp(x) for x <= 0, to about one unit in the last place; 0 where it would be below the normal numbers; NaN stays. x is n ln 2 + r
// with ln 2 in two parts (Cody and Waite), exp(r) its Taylor series. No fused operations: every instruction set gives the same bits.
template <class E>
inline typename E::Vector exponential(typename E::Vector x) {
    using S = typename E::Sum;
    using V = typename E::Vector;
    using Whole = typename Heads<E>::Whole;
    using C = ExpConstants<S>;
    constexpr Series<S> series;
    const V shifted = x * C::kLog2E + C::kRound;  // its low bits are n, as an integer
    const V n = shifted - C::kRound;
    const V r = (x - n * C::kHigh) - n * C::kLow;
    V sum = r * series.coefficient[C::kTerms];
    for (int i = C::kTerms - 1; i > 0; --i) sum = (sum + series.coefficient[i]) * r;
    const Whole power = (reinterpret_cast<Whole>(shifted) + C::kBias) << C::kShift;
    return x < C::kLeast ? V{} : (sum + S{1}) * reinterpret_cast<V>(power);
}

template <class V, class S>
inline V leaky(V z, S slope) {
    return z > 0 ? z : z * slope;
}

// Combines the lanes of each head in a table of one entry, and gives every lane its head's result.
template <class E, class Combine>
inline void fold(const Heads<E>& in, typename E::Sum* lanes, Combine combine) {
    constexpr int64_t L = Heads<E>::L;
    for (int64_t w = L / 2; w >= in.padded; w /= 2)
        for (int64_t l = 0; l < w; ++l) lanes[l] = combine(lanes[l], lanes[l + w]);
    for (int64_t w = in.padded; w < L; w *= 2)
        for (int64_t l = 0; l < w; ++l) lanes[l + w] = lanes[l];
}

// One number per head, repeated through a table of one entry.
template <class E>
inline void repeat(const Heads<E>& in, const typename E::Sum* numbers, typename E::Sum* lanes) {
    for (int64_t h = 0; h < in.heads; ++h) lanes[h] = numbers[h];
    for (int64_t w = in.padded; w < Heads<E>::L; w *= 2)
        for (int64_t l = 0; l < w; ++l) lanes[l + w] = lanes[l];
}

// Calls body(at, lane) for the vectors of a table, those with the same heads one after the other.
template <class E, class Body>
inline void for_vectors(const Heads<E>& in, int64_t count, int64_t lane, Body body) {
    for (int64_t at = lane, end = in.table(count); at < end; at += in.period) body(at);
}

// The sum of a table over its entries, added to `total`.
template <class E>
inline void add_entries(const Heads<E>& in, const typename E::Sum* table, int64_t count, typename E::Sum* total) {
    using S = typename E::Sum;
    using V = typename E::Vector;
    S sums[Heads<E>::L];
    for (int64_t lane = 0; lane < in.period; lane += Heads<E>::L) {
        V sum{};
        for_vectors(in, count, lane, [&](int64_t at) { sum += load_as<V>(table + at); });
        if (in.padded >= Heads<E>::L) {
            store_as(total + lane, load_as<V>(total + lane) + sum);
        } else {
            store_as(sums, sum);
            fold(in, sums, [](S a, S b) { return a + b; });
            store_as(total, load_as<V>(total) + load_as<V>(sums));
        }
    }
}

// What the softmax of a row has come to: the largest score of each head, and the sum of exp(score - largest).
template <class E>
struct Softmax {
    using S = typename E::Sum;
    using V = typename E::Vector;
    S *peak, *total;
    S* shrink;  // by how much what was summed before must shrink, since a larger score has come
    Softmax(const Heads<E>& in, Arena& arena)
        : peak(arena.take<S>(in.table_room(1))), total(arena.take<S>(in.table_room(1))), shrink(arena.take<S>(in.table_room(1))) {}

    void begin(const Heads<E>& in) {
        for (int64_t l = 0; l < in.period; ++l) peak[l] = -__builtin_inff(), total[l] = 0;
    }
    // Scores become exp(score - peak), with the peak, the total and `shrink` brought up to date.
    void take(const Heads<E>& in, S* scores, int64_t count) {
        constexpr int64_t L = Heads<E>::L;
        for (int64_t q = count * in.padded; q < in.table(count); ++q) scores[q] = -__builtin_inff();
        for (int64_t lane = 0; lane < in.period; lane += L) {
            V most = load_as<V>(peak + lane);
            store_as(shrink + lane, most);
            for_vectors(in, count, lane, [&](int64_t at) {
                const V score = load_as<V>(scores + at);
                most = score > most ? score : most;
            });
            store_as(peak + lane, most);
        }
        fold(in, peak, [](S a, S b) { return a > b ? a : b; });
        for (int64_t lane = 0; lane < in.period; lane += L) {
            const V most = load_as<V>(peak + lane), less = exponential<E>(load_as<V>(shrink + lane) - most);
            store_as(shrink + lane, less);
            store_as(total + lane, load_as<V>(total + lane) * less);
            for_vectors(in, count, lane,
                        [&](int64_t at) { store_as(scores + at, exponential<E>(load_as<V>(scores + at) - most)); });
        }
        add_entries(in, scores, count, total);
    }
};

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
