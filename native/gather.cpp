#include "gather.h"

#include <cstring>

#include "common.h"
#include "csr.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace headrace {
namespace {

// Larger outputs go past the caches: they would not stay there, and a streaming store saves reading the line first.
constexpr int64_t kStreamBytes = int64_t{8} << 20;
constexpr int64_t kRequested = 8 << 10;  // bytes of rows under way per thread

inline void copy_plain(char* to, const char* from, int64_t bytes) { std::memcpy(to, from, static_cast<size_t>(bytes)); }

inline void copy_streaming(char* to, const char* from, int64_t bytes) {
#if defined(__x86_64__)
    for (int64_t b = 0; b < bytes; b += 16)
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + b),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + b)));
#else
    copy_plain(to, from, bytes);
#endif
}

template <class Id, class Copy>
void copy_rows(const char* rows, int64_t row_bytes, int64_t row_stride, const Id* ids, int64_t begin, int64_t end,
               int64_t ahead, char* out, Copy copy) {
    const auto request = [&](int64_t i) {
        const char* row = rows + static_cast<int64_t>(ids[i]) * row_stride;
        for (int64_t b = 0; b < row_bytes; b += 64) prefetch(row + b);
        prefetch(row + row_bytes - 1);
    };
    for (int64_t i = begin; i < std::min(begin + ahead, end); ++i) request(i);
    for (int64_t i = begin; i < end; ++i) {
        if (i + ahead < end) request(i + ahead);
        copy(out + i * row_bytes, rows + static_cast<int64_t>(ids[i]) * row_stride, row_bytes);
    }
}

}  // namespace

template <class Id>
void gather_rows(const char* rows, int64_t num_rows, int64_t row_bytes, int64_t row_stride, const Id* ids,
                 int64_t count, char* out, int threads) {
    const IdRange<Id> range = id_range(ids, count, threads);
    require(count == 0 || (range.least >= 0 && range.most < num_rows), "id out of range");
    if (row_bytes == 0) return;
    const int64_t ahead = std::clamp<int64_t>(kRequested / row_bytes, 4, 64);
    threads = useful_threads(threads, count * row_bytes, 1 << 16);
    const bool streaming = count * row_bytes >= kStreamBytes && row_bytes % 16 == 0 &&
                           reinterpret_cast<uintptr_t>(out) % 16 == 0;
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; ++t) {
        const int64_t begin = cut(count, threads, t), end = cut(count, threads, t + 1);
        if (streaming)
            copy_rows(rows, row_bytes, row_stride, ids, begin, end, ahead, out, copy_streaming);
        else
            copy_rows(rows, row_bytes, row_stride, ids, begin, end, ahead, out, copy_plain);
#if defined(__x86_64__)
        _mm_sfence();
#endif
    }
}

template void gather_rows(const char*, int64_t, int64_t, int64_t, const int32_t*, int64_t, char*, int);
template void gather_rows(const char*, int64_t, int64_t, int64_t, const int64_t*, int64_t, char*, int);

}  // namespace headrace
