// Rows of several heads: how a vector of a row's columns meets the numbers its heads have. For vector_*.cpp alone, as
// vector_elements.h.
//
// A table holds one number per entry and head: entry k, head h stands at k * padded + h. `padded` is a power of two or a
// multiple of a vector's lanes, so that a vector of a table always begins with the same heads. A slot is a vector of a
// row's columns; the last one is moved back so that it ends with the row, and then repeats columns of the one before.
#pragma once

#include "vector_elements.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

template <class S>
struct Lanes;
template <>
struct Lanes<float> {
    typedef int32_t Whole __attribute__((vector_size(64)));  // as many integers as a vector has numbers
    typedef float Half __attribute__((vector_size(32)));
    typedef float Quarter __attribute__((vector_size(16)));
};
template <>
struct Lanes<double> {
    typedef int64_t Whole __attribute__((vector_size(64)));
    typedef double Half __attribute__((vector_size(32)));
    typedef double Quarter __attribute__((vector_size(16)));
};

// Asks for rows before they are needed: `bytes` of row indices[e] of an array, for one entry e after the other.
class Ahead {
public:
    Ahead(const Ids& indices, int64_t count, int64_t from, const void* rows, int64_t bytes, int64_t stride=0)
        : indices_(indices), count_(count), next_(from < 0 ? 0 : from), rows_(static_cast<const char*>(rows)), bytes_(bytes), stride_(stride?stride:bytes) {}
    __attribute__((always_inline)) void reach(int64_t e) {
        const int64_t limit = e + kAhead < count_ ? e + kAhead : count_;
        for (; next_ < limit; ++next_) prefetch_row(rows_ + indices_[next_] * stride_, bytes_);  // a bad index is harmless here
    }

private:
    const Ids indices_;
    const int64_t count_;
    int64_t next_;
    const char* rows_;
    const int64_t bytes_, stride_;
};

// What a loop over the entries from `begin` on calls as it reaches each.
struct Request {
    int64_t begin = 0;
    Ahead* ahead = nullptr;
    Ahead* also = nullptr;
    __attribute__((always_inline)) void operator()(int64_t k) const {
        if (ahead) ahead->reach(begin + k);
        if (also) also->reach(begin + k);
    }
};

template <int N>
struct Slots {};

// Memory handed out piece by piece, each on a line of its own. Without memory it only measures.
class Arena {
public:
    explicit Arena(char* memory) : begin_(memory) {}
    template <class T>
    T* take(int64_t count) {
        const int64_t at = used_;
        used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
        return begin_ ? reinterpret_cast<T*>(begin_ + at) : nullptr;
    }
    int64_t used() const { return used_; }

private:
    char* begin_;
    int64_t used_ = 0;
};

template <class E>
struct Heads {
    using S = typename E::Sum;
    using T = typename E::Type;
    using V = typename E::Vector;
    using Whole = typename Lanes<S>::Whole;
    using Half = typename Lanes<S>::Half;
    using Quarter = typename Lanes<S>::Quarter;
    static constexpr int64_t L = 64 / sizeof(S), Q = 16 / sizeof(S);

    const int64_t heads, channels, width, padded;
    const int64_t period;  // lanes after which the heads of a table repeat
    const int64_t slots;
    const bool whole;   // a slot lies within one head
    const bool narrow;  // a row is less than a vector
    int64_t* column;    // where each slot begins
    int64_t* first;     // the head of its first lane
    Whole* lane;        // and of each lane, from there

    Heads(int64_t heads_, int64_t channels_, Arena& arena)
        : heads(heads_), channels(channels_), width(heads_ * channels_), padded(padded_heads(heads_, L)),
          period(padded > L ? padded : L), slots((width + L - 1) / L), whole(channels % L == 0), narrow(width < L),
          column(arena.take<int64_t>(slots)), first(arena.take<int64_t>(slots)), lane(arena.take<Whole>(slots)) {
        if (!column) return;
        for (int64_t s = 0; s < slots; ++s) {
            column[s] = narrow ? 0 : s * L < width - L ? s * L : width - L;
            first[s] = column[s] / channels;
            for (int64_t l = 0; l < L; ++l)
                lane[s][l] = column[s] + l < width ? (column[s] + l) / channels - first[s] : 0;
        }
    }
    // Numbers of a table for `count` entries, to the end of its last vector.
    int64_t table(int64_t count) const { return (count * padded + period - 1) / period * period; }
    // Numbers to take for a table: `spread` reads a vector from any head of it.
    int64_t table_room(int64_t count) const { return table(count) + L; }
    int64_t row_room() const { return slots * L; }
};

// The number of each lane's head, from a table at the row of its entry.
template <class E, bool whole>
struct Spread {
    using S = typename E::Sum;
    int64_t first;
    Spread() = default;
    Spread(const Heads<E>& in, int64_t slot) : first(in.first[slot]) {}
    S operator()(const S* numbers) const { return numbers[first]; }
};

template <class E>
struct Spread<E, false> {
    using S = typename E::Sum;
    using V = typename E::Vector;
    int64_t first;
    typename Heads<E>::Whole lane;
    Spread() = default;
    Spread(const Heads<E>& in, int64_t slot) : first(in.first[slot]), lane(in.lane[slot]) {}
    V operator()(const S* numbers) const {
        numbers += first;
#if defined(__AVX512F__)
        if constexpr (sizeof(S) == 4)
            return reinterpret_cast<V>(_mm512_permutexvar_ps(reinterpret_cast<__m512i>(lane), _mm512_loadu_ps(numbers)));
        else
            return reinterpret_cast<V>(_mm512_permutexvar_pd(reinterpret_cast<__m512i>(lane), _mm512_loadu_pd(numbers)));
#else
#if defined(__AVX2__)
        if constexpr (sizeof(S) == 4) {
            const __m256 low = _mm256_loadu_ps(numbers), high = _mm256_loadu_ps(numbers + 8);
            __m256i heads[2];
            __m256 parts[2];
            __builtin_memcpy(heads, &lane, 64);
            for (int i = 0; i < 2; ++i)
                parts[i] = _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, heads[i]), _mm256_permutevar8x32_ps(high, heads[i]),
                                            _mm256_castsi256_ps(_mm256_slli_epi32(heads[i], 28)));
            return load_as<V>(parts);
        }
#endif
        V v;
        for (int l = 0; l < Heads<E>::L; ++l) v[l] = numbers[lane[l]];
        return v;
#endif
    }
};

// A few elements as a vector V of sums, which may be shorter than the element's own, or a single number.
template <class E, class V>
inline V load_lanes(const typename E::Type* p) {
    using S = typename E::Sum;
    if constexpr (sizeof(V) == sizeof(S)) {
        return E::get(p);
    } else if constexpr (sizeof(typename E::Type) == sizeof(S)) {
        return load_as<V>(p);
    } else {
        constexpr int N = sizeof(V) / sizeof(S);
        V v;
#if defined(__AVX2__) && defined(__F16C__)
        if constexpr (__is_same(E, F16)) {
            if constexpr (N == 8)
                return reinterpret_cast<V>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
            else if constexpr (N == 4)
                return reinterpret_cast<V>(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
        }
        if constexpr (__is_same(E, BF16)) {
            if constexpr (N == 8)
                return reinterpret_cast<V>(
                    _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
            else if constexpr (N == 4)
                return reinterpret_cast<V>(
                    _mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))), 16));
        }
#endif
        for (int i = 0; i < N; ++i) v[i] = E::get(p + i);
        return v;
    }
}

// One slot of a row. A narrow row is read element by element: behind it may lie nothing.
template <class E, bool narrow>
inline typename E::Vector load_slot(const Heads<E>& in, const typename E::Type* row, int64_t column) {
    if constexpr (!narrow) {
        return E::load(row + column);
    } else {
        typename E::Sum numbers[Heads<E>::L] = {};
        for (int64_t j = 0; j < in.width; ++j) numbers[j] = E::get(row + j);
        return load_as<typename E::Vector>(numbers);
    }
}

template <class E>
inline void store_slot(const Heads<E>& in, typename E::Type* row, int64_t column, typename E::Vector v) {
    if (!in.narrow) return E::store(row + column, v);
    for (int64_t j = 0; j < in.width; ++j) E::put(row + j, v[j]);
}

// A row in the type of its sums.
template <class E>
inline void widen(const Heads<E>& in, const typename E::Type* row, typename E::Sum* out) {
    if (in.narrow) return store_as(out, load_slot<E, true>(in, row, 0));
    for (int64_t s = 0; s < in.slots; ++s) store_as(out + in.column[s], E::load(row + in.column[s]));
}

// The four sums of four vectors' lanes, or the two of two's.
inline Lanes<float>::Quarter across(const Lanes<float>::Quarter* v) {
    const auto low01 = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5), high01 = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
    const auto low23 = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5), high23 = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
    const auto sum01 = low01 + high01, sum23 = low23 + high23;
    return __builtin_shufflevector(sum01, sum23, 0, 1, 4, 5) + __builtin_shufflevector(sum01, sum23, 2, 3, 6, 7);
}
inline Lanes<double>::Quarter across(const Lanes<double>::Quarter* v) {
    return __builtin_shufflevector(v[0], v[1], 0, 2) + __builtin_shufflevector(v[0], v[1], 1, 3);
}

// The sum over one head's columns of term(elements, column), in the lanes of a short vector: `across` adds those. C: the number of
// channels, where it is one that is worth knowing in advance.
template <class E, int C, class Term>
__attribute__((always_inline)) inline typename Heads<E>::Quarter head_sum(const Heads<E>& in, const typename E::Type* row,
                                                                          int64_t head, Term term) {
    using Half = typename Heads<E>::Half;
    using Quarter = typename Heads<E>::Quarter;
    using S = typename E::Sum;
    constexpr int64_t H = 32 / sizeof(S), Q = Heads<E>::Q;
    const int64_t channels = C ? C : in.channels, column = head * channels;
    row += column;
    int64_t j = 0;
    Quarter sum{};
    if (H <= channels) {
        Half wide = term(load_lanes<E, Half>(row), column);
        for (j = H; j + H <= channels; j += H) wide += term(load_lanes<E, Half>(row + j), column + j);
        if constexpr (sizeof(S) == 4)
            sum = __builtin_shufflevector(wide, wide, 0, 1, 2, 3) + __builtin_shufflevector(wide, wide, 4, 5, 6, 7);
        else
            sum = __builtin_shufflevector(wide, wide, 0, 1) + __builtin_shufflevector(wide, wide, 2, 3);
    }
    if constexpr (C % H == 0 && C) return sum;
    if (j + Q <= channels) {
        sum += term(load_lanes<E, Quarter>(row + j), column + j);
        j += Q;
    }
    for (; j < channels; ++j) sum[0] += term(E::get(row + j), column + j);
    return sum;
}

template <class E, int C, class Term>
__attribute__((noinline)) void head_sums_of(const Heads<E>& in, const typename E::Type* const* rows, int64_t count, Request request, Term term,
                      typename E::Sum* table) {
    using Quarter = typename Heads<E>::Quarter;
    constexpr int64_t Q = Heads<E>::Q;
    Quarter part[Q];
    if (in.padded >= Q) {
        for (int64_t k = 0; k < count; ++k) {
            request(k);
            for (int64_t h = 0; h < in.padded; h += Q) {
                for (int64_t i = 0; i < Q; ++i)
                    part[i] = h + i < in.heads ? head_sum<E, C>(in, rows[k], h + i, term) : Quarter{};
                store_as(table + k * in.padded + h, across(part));
            }
        }
    } else {  // so few heads that several rows fill a short vector
        for (int64_t k = 0; k < count;) {
            int64_t h = 0;
            const int64_t at = k * in.padded;
            for (int64_t i = 0; i < Q; ++i) {
                if (h == 0 && k < count) request(k);
                part[i] = k < count ? head_sum<E, C>(in, rows[k], h, term) : Quarter{};
                if (++h == in.padded) h = 0, ++k;
            }
            store_as(table + at, across(part));
        }
    }
    for (int64_t q = (count * in.padded + Q - 1) / Q * Q; q < in.table(count); ++q) table[q] = 0;
}

// table[k, h] = sum over the columns of head h of term(elements of rows[k], column).
template <class E, class Term>
inline void head_sums(const Heads<E>& in, const typename E::Type* const* rows, int64_t count, Request request, Term term,
                      typename E::Sum* table) {
    switch (in.channels) {
        case 8: return head_sums_of<E, 8>(in, rows, count, request, term, table);
        case 16: return head_sums_of<E, 16>(in, rows, count, request, term, table);
        case 32: return head_sums_of<E, 32>(in, rows, count, request, term, table);
        case 64: return head_sums_of<E, 64>(in, rows, count, request, term, table);
        default: return head_sums_of<E, 0>(in, rows, count, request, term, table);
    }
}

template <class E, int N, bool whole, bool narrow, class Term>
__attribute__((noinline)) void add_slots(const Heads<E>& in, int64_t slot, const typename E::Type* const* rows, int64_t count,
                      const typename E::Sum* table, Request request, Term term, typename E::Vector* sums) {
    Spread<E, whole> spread[N];
    int64_t column[N];
    typename E::Vector sum[N];
    for (int v = 0; v < N; ++v) {
        spread[v] = Spread<E, whole>(in, slot + v);
        column[v] = in.column[slot + v];
        sum[v] = sums[slot + v];
    }
    for (int64_t k = 0; k < count; ++k) {
        request(k);
        for (int v = 0; v < N; ++v)
            sum[v] += term(load_slot<E, narrow>(in, rows[k], column[v]), column[v]) * spread[v](table + k * in.padded);
    }
    for (int v = 0; v < N; ++v) sums[slot + v] = sum[v];
}

// sums[slot] += term(elements of rows[k], column) * table[k, head of the column], over the entries in order.
template <class E, class Term>
inline void weighted_sums(const Heads<E>& in, const typename E::Type* const* rows, int64_t count,
                          const typename E::Sum* table, Request request, Term term, typename E::Vector* sums) {
    if (in.narrow) return add_slots<E, 1, false, true>(in, 0, rows, count, table, request, term, sums);
    int64_t slot = 0;
    const auto pass = [&]<int N>(Slots<N>) {  // rows were requested in the first pass over them, and lie in the cache after it
        const Request now = slot ? Request{} : request;
        if (in.whole)
            add_slots<E, N, true, false>(in, slot, rows, count, table, now, term, sums);
        else
            add_slots<E, N, false, false>(in, slot, rows, count, table, now, term, sums);
        slot += N;
    };
    while (slot + 8 <= in.slots) pass(Slots<8>{});
    if (slot + 4 <= in.slots) pass(Slots<4>{});
    if (slot + 2 <= in.slots) pass(Slots<2>{});
    if (slot + 1 <= in.slots) pass(Slots<1>{});
}

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
