#include "gather.h"

#include <cstring>

#include "common.h"
#include "csr.h"

namespace headrace {
namespace {

constexpr int64_t kRequested = 6 << 10;  // bytes of rows under way per thread: enough to hide memory's latency

}  // namespace

template <class Id>
void gather_rows(const char* rows, int64_t num_rows, int64_t row_bytes, const Id* ids,
                 int64_t count, char* out, int threads) {
    const IdRange<Id> range = id_range(ids, count, threads);
    require(count == 0 || (range.least >= 0 && range.most < num_rows), "id out of range");
    if (row_bytes == 0) return;
    const int64_t ahead = std::clamp<int64_t>(kRequested / row_bytes, 4, 16);
    threads = useful_threads(threads, count * row_bytes, 1 << 16);
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; ++t) {
        const int64_t begin = cut(count, threads, t), end = cut(count, threads, t + 1);
        const auto request = [&](int64_t i) {
            const char* row = rows + static_cast<int64_t>(ids[i]) * row_bytes;
            for (int64_t b = 0; b < row_bytes; b += 64) prefetch(row + b);
        };
        for (int64_t i = begin; i < std::min(begin + ahead, end); ++i) request(i);
        for (int64_t i = begin; i < end; ++i) {
            if (i + ahead < end) request(i + ahead);
            std::memcpy(out + i * row_bytes, rows + static_cast<int64_t>(ids[i]) * row_bytes,
                        static_cast<size_t>(row_bytes));
        }
    }
}

template void gather_rows(const char*, int64_t, int64_t, const int32_t*, int64_t, char*, int);
template void gather_rows(const char*, int64_t, int64_t, const int64_t*, int64_t, char*, int);

}  // namespace headrace
