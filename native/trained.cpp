#include "trained.h"

#include <cmath>
#include <cstring>

#include "common.h"
#include "csr.h"
#include "philox.h"

namespace headrace {
namespace {

float widened(uint16_t bits) {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

// Up with the probability of what is cut off. Infinities and what is no number stay so: a draw must not carry into their bits.
uint16_t rounded(float value, uint32_t draw) {
    uint32_t word;
    std::memcpy(&word, &value, 4);
    if ((word & 0x7F800000u) == 0x7F800000u) return static_cast<uint16_t>(word >> 16 | ((word & 0x7FFFFFu) ? 0x40u : 0u));
    return static_cast<uint16_t>((word + (draw & 0xFFFFu)) >> 16);
}

// The first part that is wanted and not here, or -1.
template <class Id>
int64_t first_missing(const TrainedTable& table, const Id* ids, int64_t count, uint8_t* touched, int threads) {
    const IdRange<Id> range = id_range(ids, count, threads);
    require(count == 0 || (range.least >= 0 && range.most < table.num_rows), "id out of range");
    for (int64_t i = 0; i < count; ++i) {
        const int64_t part = static_cast<int64_t>(ids[i]) / table.rows_per_part;
        if (table.rows[part] == 0 || (table.state_width && table.state[part] == 0)) return part;
        if (touched) touched[part] = 1;
    }
    return -1;
}

struct Place {
    char* rows;
    float* state;
};

Place place_of(const TrainedTable& table, int64_t id, int64_t row_bytes) {
    const int64_t part = id / table.rows_per_part, row = id - part * table.rows_per_part;
    return {reinterpret_cast<char*>(table.rows[part]) + row * row_bytes,
            reinterpret_cast<float*>(table.state[part]) + row * table.state_width};
}

void request(const Place& place, int64_t row_bytes, int64_t state_bytes) {
    for (int64_t b = 0; b < row_bytes; b += 64) prefetch(place.rows + b);
    for (int64_t b = 0; b < state_bytes; b += 64) prefetch(reinterpret_cast<char*>(place.state) + b);
}

void add_halves(uint16_t* row, const float* delta, int64_t width, PhiloxKey key, int64_t id) {
    for (int64_t j = 0; j < width; j += 8) {
        const PhiloxBlock draw = philox(key, static_cast<uint32_t>(j / 8), static_cast<uint32_t>(id),
                                        static_cast<uint32_t>(id >> 32), 0);
        for (int64_t k = 0; k < 8 && j + k < width; ++k)
            row[j + k] = rounded(widened(row[j + k]) + delta[j + k], draw.word[k / 2] >> (16 * (k % 2)));
    }
}

constexpr int64_t kAhead = 8;          // rows under way per thread
constexpr int64_t kGrain = 1 << 16;    // bytes of rows worth a thread

}  // namespace

template <class Id>
int64_t gather_trained(const TrainedTable& table, const Id* ids, int64_t count, float* rows, float* state, int threads) {
    const int64_t missing = first_missing(table, ids, count, nullptr, threads);
    if (missing >= 0) return missing;
    const int64_t width = table.width, row_bytes = width * (table.half ? 2 : 4), state_bytes = table.state_width * 4;
    threads = useful_threads(threads, count * (row_bytes + state_bytes), kGrain);
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; ++t) {
        const int64_t begin = cut(count, threads, t), end = cut(count, threads, t + 1);
        for (int64_t i = begin; i < end; ++i) {
            if (i + kAhead < end) request(place_of(table, static_cast<int64_t>(ids[i + kAhead]), row_bytes), row_bytes, state_bytes);
            const Place from = place_of(table, static_cast<int64_t>(ids[i]), row_bytes);
            float* row = rows + i * width;
            if (table.half) {
                const uint16_t* bits = reinterpret_cast<const uint16_t*>(from.rows);
                for (int64_t j = 0; j < width; ++j) row[j] = widened(bits[j]);
            } else if (row_bytes) {
                std::memcpy(row, from.rows, static_cast<size_t>(row_bytes));
            }
            if (state_bytes) std::memcpy(state + i * table.state_width, from.state, static_cast<size_t>(state_bytes));
        }
    }
    return -1;
}

template <class Id>
int64_t add_trained(const TrainedTable& table, const Id* ids, int64_t count, const float* rows, const float* state,
                    uint64_t seed, uint64_t call, uint8_t* touched, int threads) {
    const int64_t missing = first_missing(table, ids, count, touched, threads);
    if (missing >= 0) return missing;
    const int64_t width = table.width, row_bytes = width * (table.half ? 2 : 4), state_bytes = table.state_width * 4;
    const PhiloxKey key = stream_key(seed, 0, call, Purpose::rounding);
    threads = useful_threads(threads, count * (row_bytes + state_bytes), kGrain);
    // A thread takes all occurrences of an id, so that none is lost and their order does not depend on how many threads there are.
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; ++t) {
        const auto mine = [&](int64_t i) {
            const uint32_t mixed = static_cast<uint32_t>(ids[i]) * 0x9E3779B1u;
            return static_cast<int>((static_cast<uint64_t>(mixed) * static_cast<uint64_t>(threads)) >> 32) == t;
        };
        for (int64_t i = 0; i < count; ++i) {
            const int64_t next = i + kAhead * threads;
            if (next < count && mine(next))
                request(place_of(table, static_cast<int64_t>(ids[next]), row_bytes), row_bytes, state_bytes);
            if (!mine(i)) continue;
            const Place to = place_of(table, static_cast<int64_t>(ids[i]), row_bytes);
            const float* delta = rows + i * width;
            if (table.half) {
                add_halves(reinterpret_cast<uint16_t*>(to.rows), delta, width, key, static_cast<int64_t>(ids[i]));
            } else {
                float* row = reinterpret_cast<float*>(to.rows);
                for (int64_t j = 0; j < width; ++j) row[j] += delta[j];
            }
            for (int64_t j = 0; j < table.state_width; ++j) to.state[j] += state[i * table.state_width + j];
        }
    }
    return -1;
}

void normal_rows(uint64_t seed, int64_t begin, float scale, int64_t rows, int64_t width, float* out, int threads) {
    if (width == 0) return;
    threads = useful_threads(threads, rows * width, 1 << 12);
    const PhiloxKey key = stream_key(seed, 0, 0, Purpose::initial);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t id = begin + i;
        for (int64_t j = 0; j < width; j += 4) {
            const PhiloxBlock b = philox(key, static_cast<uint32_t>(j / 4), static_cast<uint32_t>(id),
                                         static_cast<uint32_t>(id >> 32), 0);
            float normal[4];
            for (int pair = 0; pair < 2; ++pair) {  // Box and Muller; the logarithm is of (0, 1]
                const float uniform = (static_cast<float>(b.word[2 * pair] >> 8) + 1.0f) * 0x1p-24f;
                const float radius = std::sqrt(-2.0f * std::log(uniform));
                const float angle = 6.2831853f * (static_cast<float>(b.word[2 * pair + 1] >> 8) * 0x1p-24f);
                normal[2 * pair] = radius * std::cos(angle);
                normal[2 * pair + 1] = radius * std::sin(angle);
            }
            for (int64_t k = 0; k < 4 && j + k < width; ++k) out[i * width + j + k] = scale * normal[k];
        }
    }
}

template int64_t gather_trained(const TrainedTable&, const int32_t*, int64_t, float*, float*, int);
template int64_t gather_trained(const TrainedTable&, const int64_t*, int64_t, float*, float*, int);
template int64_t add_trained(const TrainedTable&, const int32_t*, int64_t, const float*, const float*, uint64_t, uint64_t,
                             uint8_t*, int);
template int64_t add_trained(const TrainedTable&, const int64_t*, int64_t, const float*, const float*, uint64_t, uint64_t,
                             uint8_t*, int);

}  // namespace headrace
