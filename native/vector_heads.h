// Rows of several heads: how the columns of a row meet the numbers that its heads have. For vector_*.cpp alone.
//
// A table holds one number per entry and head: entry k, head h stands at k * padded + h. `padded` is a power of two or a multiple
// of a vector's lanes, so that the lanes of a table's vectors always have the same heads. A slot is a vector of a row's
// columns; the last one is moved back so that it ends with the row, and then repeats columns of the one before.
#pragma once

#include "vector_wide.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

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
    using V = Wide<S, 64>;
    using Half = Wide<S, 32>;
    using Quarter = Wide<S, 16>;
    using Lane = typename IntegerLike<S>::Type;
    static constexpr int64_t L = 64 / sizeof(S), Q = 16 / sizeof(S);

    const int64_t heads, channels, width, padded;
    const int64_t period;          // lanes after which the heads of a table repeat
    const int64_t slots, regular;  // all, and those before a last one that was moved back
    int64_t* column;               // where each slot begins
    int64_t* first;                // a head from which on a vector of a table's numbers has those of all its lanes
    Lane* lane;                    // the head of each of its lanes, from there
    S* rest;                       // all bits set in the lanes that a head's last chunk adds to the others (see head_sum)

    Heads(int64_t heads_, int64_t channels_, Arena& arena)
        : heads(heads_), channels(channels_), width(heads_ * channels_), padded(padded_heads(heads_, L)),
          period(padded > L ? padded : L), slots((width + L - 1) / L), regular(width / L),
          column(arena.take<int64_t>(slots)), first(arena.take<int64_t>(slots)), lane(arena.take<Lane>(slots * L)),
          rest(arena.take<S>(L)) {
        if (!column) return;
        for (int64_t s = 0; s < slots; ++s) {
            column[s] = s < regular || !regular ? s * L : width - L;
            int64_t head = column[s] / channels, channel = column[s] % channels;
            first[s] = heads <= L ? 0 : head;
            for (int64_t l = 0; l < L; ++l) {
                lane[s * L + l] = static_cast<Lane>(head < heads ? head - first[s] : 0);
                if (++channel == channels) channel = 0, ++head;
            }
        }
        const int64_t chunk = channels >= L ? L : channels >= L / 2 ? L / 2 : Q, left = channels % chunk;
        char* bits = reinterpret_cast<char*>(rest);
        for (int64_t b = 0; b < 64; ++b) bits[b] = b / static_cast<int64_t>(sizeof(S)) >= chunk - left ? -1 : 0;
    }
    // Numbers of a table for `count` entries, to the end of its last vector.
    int64_t table(int64_t count) const { return (count * padded + L - 1) / L * L; }
    // Numbers to take for a table: `Spread` reads a vector from any head of it.
    int64_t table_room(int64_t count) const { return table(count) + L; }
    int64_t row_room() const { return slots * L; }
    // What stands behind the last entry of a table.
    void clear_rest(S* numbers, int64_t count, S with = 0) const {
        for (int64_t q = count * padded; q < table(count); ++q) numbers[q] = with;
    }
};

// How the lanes of a slot find the numbers of their heads: all are in one vector, which is permuted; every part of a slot lies
// within one head; or neither.
enum class Find { permute, blocks, any };

template <class E>
inline Find find_of(const Heads<E>& in) {
    if (kRegister == 64) return in.heads <= in.L ? Find::permute : Find::any;
    return in.channels % Heads<E>::V::kPartLanes == 0 ? Find::blocks : Find::any;
}

// The number of each lane's head, from the numbers of one entry in a table.
template <class E, Find find>
struct Spread {
    using S = typename E::Sum;
    using H = Heads<E>;
    using V = typename H::V;
    int64_t first;
#if defined(__AVX512F__)
    __m512i lane;
    Spread() = default;
    Spread(const H& in, int64_t slot) : first(in.first[slot]), lane(_mm512_loadu_si512(in.lane + slot * H::L)) {}
    HEADRACE_INLINE V operator()(const S* numbers) const {
        if (find != Find::permute) numbers += first;
        if constexpr (sizeof(S) == 4)
            return {{reinterpret_cast<Floats>(_mm512_permutexvar_ps(lane, _mm512_loadu_ps(numbers)))}};
        else
            return {{reinterpret_cast<Doubles>(_mm512_permutexvar_pd(lane, _mm512_loadu_pd(numbers)))}};
    }
#else
    const typename H::Lane* lane;
    Spread() = default;
    Spread(const H& in, int64_t slot) : first(in.first[slot]), lane(in.lane + slot * H::L) {}
    HEADRACE_INLINE V operator()(const S* numbers) const {
        numbers += first;
        V v;
        for (int i = 0; i < V::kParts; ++i) {
            const typename H::Lane* head = lane + i * V::kPartLanes;
            if constexpr (find == Find::blocks) {
                const S number = numbers[head[0]];
                for (int l = 0; l < V::kPartLanes; ++l) v.part[i][l] = number;
                continue;
            }
#if defined(__AVX2__)
            if constexpr (sizeof(S) == 4) {
                const __m256i heads = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(head));
                const __m256 near = _mm256_permutevar8x32_ps(_mm256_loadu_ps(numbers), heads);
                const __m256 far = _mm256_permutevar8x32_ps(_mm256_loadu_ps(numbers + 8), heads);
                v.part[i] = reinterpret_cast<Floats8>(
                    _mm256_blendv_ps(near, far, _mm256_castsi256_ps(_mm256_slli_epi32(heads, 28))));
                continue;
            }
#endif
            for (int l = 0; l < V::kPartLanes; ++l) v.part[i][l] = numbers[head[l]];
        }
        return v;
    }
#endif
};

// A row that is less than a vector: behind it may lie nothing.
template <class E>
HEADRACE_INLINE typename Heads<E>::V load_narrow(const Heads<E>& in, const typename E::Type* row) {
    typename E::Type elements[Heads<E>::L] = {};
#if defined(__AVX512F__)
    const uint32_t mask = (1u << in.width) - 1;
    if constexpr (__is_same(E, F32))
        return {{reinterpret_cast<Floats>(_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), row))}};
    else if constexpr (__is_same(E, F64))
        return {{reinterpret_cast<Doubles>(_mm512_maskz_loadu_pd(static_cast<__mmask8>(mask), row))}};
    else
        store_as(elements, _mm256_maskz_loadu_epi16(static_cast<__mmask16>(mask), row));
#else
    for (int64_t j = 0; j < in.width; ++j) elements[j] = row[j];
#endif
    return load_lanes<E, typename Heads<E>::V>(elements);
}

template <class E>
HEADRACE_INLINE typename Heads<E>::V load_slot(const Heads<E>& in, const typename E::Type* row, int64_t slot) {
    return in.regular ? load_lanes<E, typename Heads<E>::V>(row + in.column[slot]) : load_narrow(in, row);
}
template <class E>
HEADRACE_INLINE void store_slot(const Heads<E>& in, typename E::Type* row, int64_t slot, typename Heads<E>::V v) {
    if (in.regular) return store_lanes<E>(row + in.column[slot], v);
    typename E::Sum numbers[Heads<E>::L];
    v.store(numbers);
    for (int64_t j = 0; j < in.width; ++j) E::put(row + j, numbers[j]);
}

// A row in the type of its sums.
template <class E>
inline void widen(const Heads<E>& in, const typename E::Type* row, typename E::Sum* out) {
    for (int64_t s = 0; s < in.slots; ++s) load_slot(in, row, s).store(out + in.column[s]);
}

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
