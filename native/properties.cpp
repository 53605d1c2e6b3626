#include "properties.h"

#include <algorithm>
#include <vector>

#include "common.h"
#include "memory.h"

namespace headrace {
namespace {

// The finalizer of splitmix64: every bit of the input reaches every bit of the result.
inline uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

struct Fingerprint {
    uint64_t low = 0, high = 0;

    void add(uint64_t u, uint64_t v) {
        low += mixed(u * 0x9e3779b97f4a7c15ull + v + 1) - mixed(v * 0x9e3779b97f4a7c15ull + u + 1);
        high += mixed((u ^ 0xa0761d6478bd642full) * 0xd1342543de82ef95ull + v) - mixed((v ^ 0xa0761d6478bd642full) * 0xd1342543de82ef95ull + u);
    }
};

}  // namespace

template <class Id>
Summary summarize(const int64_t* indptr, const Id* indices, int64_t rows, double hub, int threads) {
    threads = useful_threads(threads, indptr[rows] + rows, 1 << 16);
    Array<uint8_t> read(rows);  // whether a row is a column anywhere
    std::fill_n(read.data(), rows, uint8_t{0});
    int64_t most = 0, empty = 0, hubs = 0;
    __int128 span = 0, squares = 0;  // exact, so that threads change nothing
    Fingerprint total;
#pragma omp parallel num_threads(threads)
    {
        Fingerprint mine;
        int64_t my_most = 0, my_empty = 0, my_hubs = 0;
        __int128 my_span = 0, my_squares = 0;
#pragma omp for schedule(dynamic, 4096) nowait
        for (int64_t v = 0; v < rows; ++v) {
            const int64_t degree = indptr[v + 1] - indptr[v];
            my_most = std::max(my_most, degree);
            my_empty += degree == 0;
            my_hubs += static_cast<double>(degree) > hub;
            my_squares += static_cast<__int128>(degree) * degree;
            int64_t row_span = 0;
            for (int64_t e = indptr[v]; e < indptr[v + 1]; ++e) {
                const int64_t u = indices[e];
                row_span += std::abs(u - v);
                mine.add(static_cast<uint64_t>(u), static_cast<uint64_t>(v));
                if (!__atomic_load_n(&read[u], __ATOMIC_RELAXED)) __atomic_store_n(&read[u], uint8_t{1}, __ATOMIC_RELAXED);
            }
            my_span += row_span;
        }
#pragma omp critical
        {
            most = std::max(most, my_most);
            empty += my_empty;
            hubs += my_hubs;
            span += my_span;
            squares += my_squares;
            total.low += mine.low;
            total.high += mine.high;
        }
    }
    int64_t unread = 0, isolated = 0;
    for (int64_t v = 0; v < rows; ++v) {
        unread += !read[v];
        isolated += !read[v] && indptr[v] == indptr[v + 1];
    }
    return {most, empty, unread, isolated, hubs, static_cast<double>(span), static_cast<double>(squares), total.low == 0 && total.high == 0};
}

template <class Id>
Reuse window_reuse(const int64_t* indptr, const Id* indices, int64_t rows, const int64_t* order, int64_t window, int64_t sample,
                   int threads) {
    const int64_t windows = (rows + window - 1) / window, taken = std::min(windows, sample);
    threads = useful_threads(threads, taken, 8);
    int64_t entries = 0, unique = 0;
    FirstError error;
#pragma omp parallel num_threads(threads) reduction(+ : entries, unique)
    {
        std::vector<Id> columns;
#pragma omp for schedule(dynamic, 8)
        for (int64_t k = 0; k < taken; ++k) {
            const int64_t first = cut(windows, taken, k) * window, last = std::min(rows, first + window);
            columns.clear();
            error.guard([&] {
                for (int64_t i = first; i < last; ++i) {
                    const int64_t v = order ? order[i] : i;
                    columns.insert(columns.end(), indices + indptr[v], indices + indptr[v + 1]);
                }
            });
            if (error.any()) continue;
            entries += static_cast<int64_t>(columns.size());
            std::sort(columns.begin(), columns.end());
            unique += std::unique(columns.begin(), columns.end()) - columns.begin();
        }
    }
    error.rethrow();
    return {entries, unique};
}

#define HEADRACE_IDS(Id)                                                               \
    template Summary summarize(const int64_t*, const Id*, int64_t, double, int);       \
    template Reuse window_reuse(const int64_t*, const Id*, int64_t, const int64_t*, int64_t, int64_t, int);
HEADRACE_IDS(int32_t)
HEADRACE_IDS(int64_t)
#undef HEADRACE_IDS

}  // namespace headrace
