#include "merge.h"

#include <cstring>

#include "common.h"
#include "csr.h"

namespace headrace {
namespace {

constexpr int64_t kRequested = 6 << 10;  // bytes of rows under way per thread, as in gather.cpp
constexpr int64_t kGrain = 1 << 16;      // bytes worth a thread

}  // namespace

void merge_rows(const char* cached, int64_t cached_rows, const char* fetched, int64_t fetched_rows, int64_t row_bytes,
                const int32_t* source, int64_t count, char* out, int threads) {
    const auto range = id_range(source, count, threads);
    require(count == 0 || (range.least >= -fetched_rows && range.most < cached_rows), "source out of range");
    if (row_bytes == 0) return;
    const int64_t ahead = std::clamp<int64_t>(kRequested / row_bytes, 4, 16);
    threads = useful_threads(threads, count * row_bytes, kGrain);
    const auto row_of = [&](int64_t i) {
        const int64_t s = source[i];
        return s >= 0 ? cached + s * row_bytes : fetched + (-1 - s) * row_bytes;
    };
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; ++t) {
        const int64_t begin = cut(count, threads, t), end = cut(count, threads, t + 1);
        for (int64_t i = begin; i < end; ++i) {
            if (i + ahead < end)
                for (int64_t b = 0; b < row_bytes; b += 64) prefetch(row_of(i + ahead) + b);
            std::memcpy(out + i * row_bytes, row_of(i), static_cast<size_t>(row_bytes));
        }
    }
}

void keep_rows(const char* fetched, int64_t row_bytes, const int32_t* slot, int64_t count, char* cached, int64_t cached_rows,
               int threads) {
    const auto range = id_range(slot, count, threads);
    require(count == 0 || (range.least >= -1 && range.most < cached_rows), "slot out of range");
    if (row_bytes == 0) return;
    threads = useful_threads(threads, count * row_bytes, kGrain);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < count; ++i)
        if (slot[i] >= 0)
            std::memcpy(cached + static_cast<int64_t>(slot[i]) * row_bytes, fetched + i * row_bytes,
                        static_cast<size_t>(row_bytes));
}

}  // namespace headrace
