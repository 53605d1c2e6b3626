#include "permute.h"

#include <algorithm>
#include <cstring>

#include "common.h"

namespace headrace {

template <class Id>
void invert(const int64_t* order, int64_t count, Id* position, int threads) {
    threads = useful_threads(threads, count, 1 << 16);
    FirstError error;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; ++i) position[i] = -1;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < count; ++i) {
        if (order[i] < 0 || order[i] >= count) {
            error.set("it names a node that is not there");
            continue;
        }
        Id none = -1;
        if (!__atomic_compare_exchange_n(&position[order[i]], &none, static_cast<Id>(i), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            error.set("it names a node twice");
    }
    error.rethrow();
}

template <class Id>
Permuted<Id> permute_csr(const int64_t* indptr, const Id* indices, int64_t rows, const int64_t* order, const Id* position,
                         int threads) {
    Permuted<Id> out{Array<int64_t>(rows + 1), Array<Id>(indptr[rows])};
    out.indptr[0] = 0;
    for (int64_t i = 0; i < rows; ++i) out.indptr[i + 1] = out.indptr[i] + indptr[order[i] + 1] - indptr[order[i]];
    threads = useful_threads(threads, indptr[rows] + rows, 1 << 16);
#pragma omp parallel for schedule(dynamic, 1024) num_threads(threads)
    for (int64_t i = 0; i < rows; ++i) {
        const Id* from = indices + indptr[order[i]];
        Id* to = out.indices.data() + out.indptr[i];
        const int64_t degree = out.indptr[i + 1] - out.indptr[i];
        for (int64_t k = 0; k < degree; ++k) to[k] = position[from[k]];
    }
    return out;
}

void permute_entries(const int64_t* indptr, const int64_t* permuted, int64_t rows, const int64_t* order, const char* values,
                     int64_t bytes, char* out, int threads) {
    threads = useful_threads(threads, indptr[rows] + rows, 1 << 16);
#pragma omp parallel for schedule(dynamic, 1024) num_threads(threads)
    for (int64_t i = 0; i < rows; ++i)
        std::memcpy(out + permuted[i] * bytes, values + indptr[order[i]] * bytes,
                    static_cast<size_t>((permuted[i + 1] - permuted[i]) * bytes));
}

template <class Id>
void least_columns(const int64_t* indptr, const Id* indices, int64_t rows, int64_t missing, int64_t* least, int threads) {
    threads = useful_threads(threads, indptr[rows] + rows, 1 << 16);
#pragma omp parallel for schedule(dynamic, 4096) num_threads(threads)
    for (int64_t v = 0; v < rows; ++v)
        least[v] = indptr[v] == indptr[v + 1] ? missing : *std::min_element(indices + indptr[v], indices + indptr[v + 1]);
}

#define HEADRACE_IDS(Id)                                                                                     \
    template void invert(const int64_t*, int64_t, Id*, int);                                                 \
    template Permuted<Id> permute_csr(const int64_t*, const Id*, int64_t, const int64_t*, const Id*, int); \
    template void least_columns(const int64_t*, const Id*, int64_t, int64_t, int64_t*, int);
HEADRACE_IDS(int32_t)
HEADRACE_IDS(int64_t)
#undef HEADRACE_IDS

}  // namespace headrace
