// Neighbors of the lowest rank. Compiled once per instruction set: HEADRACE_LEVEL names it; see vector.h.
//
// Weighted draws without replacement are those of Efraimidis and Spirakis ("Weighted random sampling with a reservoir", 2006):
// every entry gets an exponential number of rate `weight`, and the lowest are taken. LABOR (Balin and Catalyurek, "Layer-neighbor
// sampling", NeurIPS 2023, in its sequential Poisson form) takes the lowest too, but of numbers that belong to the neighbors and
// are the same in all rows, so that rows agree on whom they take.
#include "minus_log.h"
#include "vector_philox.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

constexpr int kChunk = 32;

// Words of entries first .. first + 32 of a row: four to a block.
inline void entry_words(PhiloxKey key, uint32_t hop, uint64_t node, int64_t first, uint32_t* words) {
    Counters counters;
    for (int i = 0; i < 8; ++i) {
        counters.first[i] = static_cast<uint32_t>(first / 4 + i);
        counters.second[i] = static_cast<uint32_t>(node);
        counters.third[i] = node >> 32;
    }
    philox8(key, hop, counters, words);
}

// Words of the neighbors at `position` and behind it: the first of a block each. Where batches depend on one another, a
// neighbor keeps its block for `dependency` batches; which of them is the first is its own.
inline void neighbor_words(PhiloxKey key, uint32_t hop, const Ranking& ranking, int64_t position, int64_t count,
                            uint32_t* words) {
    uint32_t blocks[32];
    for (int64_t at = 0; at < count; at += 8) {
        const int64_t lanes = count - at < 8 ? count - at : 8;
        Counters counters;
        for (int i = 0; i < 8; ++i) {
            const uint64_t node = i < lanes ? static_cast<uint64_t>(ranking.indices[position + at + i]) : 0;
            counters.first[i] = ranking.dependency > 1 ? 0xFFFFFFFFu : ranking.batch;
            counters.second[i] = static_cast<uint32_t>(node);
            counters.third[i] = node >> 32;
        }
        if (ranking.dependency > 1) {
            philox8(key, 0xFFFFFFFFu, counters, blocks);
            for (int i = 0; i < 8; ++i) {
                const uint64_t phase = below(blocks[4 * i], ranking.dependency);
                counters.first[i] = (ranking.batch + phase) / ranking.dependency;
            }
        }
        philox8(key, hop, counters, blocks);
        for (int i = 0; i < 8; ++i) words[at + i] = blocks[4 * i];
    }
}

inline void swap(uint64_t& a, uint64_t& b) {
    const uint64_t t = a;
    a = b;
    b = t;
}

// The one that `before` others lie below; all differ. Their order is lost.
uint64_t select(uint64_t* values, int64_t count, int64_t before) {
    if (count <= 64) {  // by counting, without branches that nobody can predict
        for (int64_t i = 0; i < count; ++i) {
            int64_t lower = 0;
            for (int64_t j = 0; j < count; ++j) lower += values[j] < values[i];
            if (lower == before) return values[i];
        }
    }
    int64_t low = 0, high = count - 1;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (values[middle] < values[low]) swap(values[middle], values[low]);
        if (values[high] < values[low]) swap(values[high], values[low]);
        if (values[high] < values[middle]) swap(values[high], values[middle]);
        const uint64_t pivot = values[middle];
        int64_t i = low, j = high;
        while (i <= j) {
            while (values[i] < pivot) ++i;
            while (pivot < values[j]) --j;
            if (i <= j) swap(values[i++], values[j--]);
        }
        if (before <= j)
            high = j;
        else if (before >= i)
            low = i;
        else
            break;
    }
    return values[before];
}

}  // namespace

void rank(PhiloxKey key, uint32_t hop, const Ranking& ranking, const DrawRow& row, int64_t* scratch, int64_t* positions) {
    if (row.take == row.degree) {
        for (int64_t s = 0; s < row.take; ++s) positions[s] = row.begin + s;
        return;
    }
    if (row.take == 0) return;
    // Ranks are a number's bits above the entry's offset: no two are equal. `kept` holds those that may be among the lowest, in the
    // row's order; when it is full, all above the limit leave.
    uint64_t* kept = reinterpret_cast<uint64_t*>(scratch);
    uint64_t* copy = kept + rank_room(row.take);
    int64_t count = 0;
    uint64_t limit = ~uint64_t{0};
    const int64_t full = row.take + (row.take > kChunk ? row.take : kChunk);  // early, so that few of the rest come in
    const auto shrink = [&] {
        for (int64_t i = 0; i < count; ++i) copy[i] = kept[i];
        limit = select(copy, count, row.take - 1);
        int64_t left = 0;
        for (int64_t i = 0; i < count; ++i) {
            const uint64_t value = kept[i];
            kept[left] = value;
            left += value <= limit;
        }
        count = left;
    };
    for (int64_t first = 0; first < row.degree; first += kChunk) {
        const int64_t entries = row.degree - first < kChunk ? row.degree - first : kChunk;
        uint32_t words[kChunk];
        if (ranking.labor)
            neighbor_words(key, hop, ranking, row.begin + first, entries, words);
        else
            entry_words(key, hop, row.node, first, words);
        if (ranking.weight) {
            float numbers[kChunk], weights[kChunk];
            for (int i = 0; i < kChunk; ++i) weights[i] = i < entries ? ranking.weight[row.begin + first + i] : 1.0f;
            for (int i = 0; i < kChunk; ++i) numbers[i] = minus_log(words[i]) / weights[i];
            __builtin_memcpy(words, numbers, sizeof words);  // not negative: their bits are in their order
        }
        if (count + entries > full) shrink();
        for (int64_t i = 0; i < entries; ++i) {
            const uint64_t value = uint64_t{words[i]} << 32 | static_cast<uint64_t>(first + i);
            if (value < limit) kept[count++] = value;
        }
    }
    shrink();
    for (int64_t i = 0; i < row.take; ++i) positions[i] = row.begin + static_cast<int64_t>(kept[i] & 0xFFFFFFFFu);
}

}  // namespace headrace::HEADRACE_LEVEL
