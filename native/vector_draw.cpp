// Drawing neighbors. Compiled once per instruction set: HEADRACE_LEVEL names it; see vector.h.
#include "vector_philox.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

// Floyd's method for at most 16 of `degree`: slot i draws from 0 .. degree - take + i, and takes that bound
// itself when the drawn one is taken already.
inline void floyd16(const uint32_t* words, int64_t degree, int take, int64_t begin, int64_t* out) {
    const uint32_t first = static_cast<uint32_t>(degree - take);
#if defined(__AVX512F__)
    __m512i chosen = _mm512_set1_epi32(-1);
    for (int i = 0; i < take; ++i) {
        uint32_t r = below(words[i], first + i + 1);
        if (_mm512_cmpeq_epi32_mask(chosen, _mm512_set1_epi32(static_cast<int>(r)))) r = first + i;
        chosen = _mm512_mask_set1_epi32(chosen, static_cast<__mmask16>(1u << i), static_cast<int>(r));
        out[i] = begin + r;
    }
#else
    uint32_t chosen[16];
    for (int i = 0; i < 16; ++i) chosen[i] = 0xFFFFFFFFu;
    for (int i = 0; i < take; ++i) {
        uint32_t r = below(words[i], first + i + 1);
        uint32_t taken = 0;
        for (int q = 0; q < 16; ++q) taken |= chosen[q] == r;
        if (taken) r = first + i;
        chosen[i] = r;
        out[i] = begin + r;
    }
#endif
}

inline int64_t draw_slot(PhiloxKey key, uint32_t hop, const DrawRow& row, int64_t slot, int64_t bound) {
    const uint32_t low = static_cast<uint32_t>(row.node), high = static_cast<uint32_t>(row.node >> 32);
    if (row.degree <= kNarrowDegree) {
        const PhiloxBlock b = philox(key, static_cast<uint32_t>(slot / 4), low, high, hop);
        return below(b.word[slot % 4], static_cast<uint64_t>(bound));
    }
    const PhiloxBlock b = philox(key, static_cast<uint32_t>(slot / 2), low, high, hop);
    const int w = static_cast<int>(slot % 2) * 2;
    return static_cast<int64_t>(below_wide(b.word[w], b.word[w + 1], static_cast<uint64_t>(bound)));
}

// Any number of any degree: a small hash table remembers what is taken.
void floyd_any(PhiloxKey key, uint32_t hop, const DrawRow& row, int64_t* table, int64_t* out) {
    const int64_t mask = draw_scratch(row.take) - 1;
    for (int64_t i = 0; i <= mask; ++i) table[i] = -1;
    const auto insert = [&](int64_t value) {  // false if it was there
        uint64_t at = (static_cast<uint64_t>(value) * 0x9E3779B97F4A7C15ull) >> 20;
        for (;; ++at) {
            int64_t& cell = table[static_cast<int64_t>(at) & mask];
            if (cell == value) return false;
            if (cell < 0) return cell = value, true;
        }
    };
    for (int64_t i = 0; i < row.take; ++i) {
        const int64_t bound = row.degree - row.take + i;
        int64_t r = draw_slot(key, hop, row, i, bound + 1);
        if (!insert(r)) insert(r = bound);
        out[i] = row.begin + r;
    }
}

}  // namespace

void draw(PhiloxKey key, uint32_t hop, bool replace, const DrawRow* rows, int64_t count, int64_t* scratch,
          int64_t* positions) {
    // Short draws are made together, eight blocks at a time; each row owns `blocks` consecutive blocks.
    uint32_t words[kDrawGroup * 16 + 32];
    int32_t offset[kDrawGroup];
    Counters counters;
    int filled = 0, done = 0;
    for (int64_t i = 0; i < count; ++i) {
        const DrawRow& row = rows[i];
        const bool all = !replace && row.take == row.degree;
        offset[i] = -1;
        if (all || row.take == 0 || row.take > 16 || row.degree > kNarrowDegree) continue;
        offset[i] = 4 * (done + filled);
        for (int64_t block = 0; block < (row.take + 3) / 4; ++block) {
            counters.first[filled] = static_cast<uint64_t>(block);
            counters.second[filled] = static_cast<uint32_t>(row.node);
            counters.third[filled] = row.node >> 32;
            if (++filled == 8) {
                philox8(key, hop, counters, words + 4 * done);
                done += 8;
                filled = 0;
            }
        }
    }
    if (filled) {
        for (int i = filled; i < 8; ++i) counters.first[i] = counters.second[i] = counters.third[i] = 0;
        philox8(key, hop, counters, words + 4 * done);
    }
    for (int64_t i = 0; i < count; ++i) {
        const DrawRow& row = rows[i];
        if (offset[i] >= 0) {
            if (!replace) {
                floyd16(words + offset[i], row.degree, static_cast<int>(row.take), row.begin, positions);
            } else {
                for (int64_t s = 0; s < row.take; ++s)
                    positions[s] = row.begin + below(words[offset[i] + s], static_cast<uint64_t>(row.degree));
            }
        } else if (replace) {
            for (int64_t s = 0; s < row.take; ++s)
                positions[s] = row.begin + draw_slot(key, hop, row, s, row.degree);
        } else if (row.take == row.degree) {
            for (int64_t s = 0; s < row.take; ++s) positions[s] = row.begin + s;
        } else {
            floyd_any(key, hop, row, scratch, positions);
        }
        positions += row.take;
    }
}

}  // namespace headrace::HEADRACE_LEVEL
