// The softmax of tables (vector_heads.h says what those are), without a call per number. For vector_*.cpp alone.
#pragma once

#include "vector_heads.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

template <class S>
struct ExpConstants;
template <>
struct ExpConstants<float> {
    static constexpr float kLog2E = 1.44269504f, kHigh = 0.693359375f, kLow = -2.12194440e-4f, kRound = 12582912.0f,
                           kLeast = -87.0f;
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

// exp(x) for x <= 0, to about one unit in the last place; 0 where it would be below the normal numbers; NaN stays.
// x is n ln 2 + r with ln 2 in two parts (Cody and Waite), exp(r) its Taylor series. No fused operations: every instruction
// set gives the same bits.
template <class S>
HEADRACE_INLINE Wide<S, 64> exponential(Wide<S, 64> numbers) {
    using C = ExpConstants<S>;
    return each([](auto x) {
        using V = decltype(x);
        typedef typename IntegerLike<S>::Type Bits __attribute__((vector_size(sizeof(V))));
        constexpr Series<S> series;
        const V shifted = x * C::kLog2E + C::kRound;  // its low bits are n, as an integer
        const V n = shifted - C::kRound;
        const V r = (x - n * C::kHigh) - n * C::kLow;
        V sum = r * series.coefficient[C::kTerms];
        for (int i = C::kTerms - 1; i > 0; --i) sum = (sum + series.coefficient[i]) * r;
        const Bits power = (reinterpret_cast<Bits>(shifted) + C::kBias) << C::kShift;
        return x < C::kLeast ? V{} : (sum + S{1}) * reinterpret_cast<V>(power);
    }, numbers);
}

// Combines the lanes of each head in a vector of a table, and gives every lane its head's result.
template <class E, class Combine>
HEADRACE_INLINE typename Heads<E>::V fold(const Heads<E>& in, typename Heads<E>::V v, Combine combine) {
    constexpr int64_t L = Heads<E>::L;
    if (in.padded >= L) return v;
    const auto half = combine(low(v), high(v));
    if (in.padded == L / 2) return twice(half);
    auto quarter = combine(low(half), high(half));
    if constexpr (L == 16)
        if (in.padded <= 2) quarter = combine(quarter, swap_twos(quarter));
    if (in.padded == 1) quarter = combine(quarter, swap_ones(quarter));
    return twice(twice(quarter));
}

// One number per head, repeated through a table of one entry.
template <class E>
inline void repeat(const Heads<E>& in, const typename E::Sum* numbers, typename E::Sum* lanes) {
    for (int64_t from = 0; from < in.period; from += in.padded)
        for (int64_t h = 0; h < in.heads; ++h) lanes[from + h] = numbers[h];
}

// Calls body(at) for the vectors of a table that have the heads of lane `lane` and on.
template <class E, class Body>
HEADRACE_INLINE void for_vectors(const Heads<E>& in, int64_t count, int64_t lane, Body body) {
    for (int64_t at = lane, end = in.table(count); at < end; at += in.period) body(at);
}

// The sum of a table over its entries, added to `total`.
template <class E>
inline void add_entries(const Heads<E>& in, const typename E::Sum* table, int64_t count, typename E::Sum* total) {
    using V = typename Heads<E>::V;
    for (int64_t lane = 0; lane < in.period; lane += V::kLanes) {
        V sum{};
        for_vectors(in, count, lane, [&](int64_t at) { sum += V::load(table + at); });
        (V::load(total + lane) + fold(in, sum, [](auto a, auto b) { return a + b; })).store(total + lane);
    }
}

// What the softmax of a row has come to: the largest score of each head, and the sum of exp(score - largest).
template <class E>
struct Softmax {
    using S = typename E::Sum;
    using V = typename Heads<E>::V;
    S *peak, *total;
    S* shrink;  // by how much what was summed before must shrink, since a larger score has come
    Softmax(const Heads<E>& in, Arena& arena)
        : peak(arena.take<S>(in.table_room(1))), total(arena.take<S>(in.table_room(1))), shrink(arena.take<S>(in.table_room(1))) {}

    void begin(const Heads<E>& in) {
        for (int64_t lane = 0; lane < in.period; lane += V::kLanes) {
            V::all(-__builtin_inff()).store(peak + lane);
            V{}.store(total + lane);
        }
    }
    // Scores become exp(score - peak), with the peak, the total and `shrink` brought up to date.
    void take(const Heads<E>& in, S* scores, int64_t count) {
        in.clear_rest(scores, count, -__builtin_inff());
        for (int64_t lane = 0; lane < in.period; lane += V::kLanes) {
            const V before = V::load(peak + lane);
            V most = before, sum{};
            for_vectors(in, count, lane, [&](int64_t at) { most = larger(V::load(scores + at), most); });
            most = fold(in, most, [](auto a, auto b) { return larger(a, b); });
            for_vectors(in, count, lane, [&](int64_t at) {
                const V power = exponential(V::load(scores + at) - most);
                power.store(scores + at);
                sum += power;
            });
            const V less = exponential(before - most);
            most.store(peak + lane);
            less.store(shrink + lane);
            (V::load(total + lane) * less + fold(in, sum, [](auto a, auto b) { return a + b; })).store(total + lane);
        }
    }
};

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
