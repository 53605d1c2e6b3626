#include "weigh.h"

#include "common.h"

namespace headrace {

void cumulative_weights(const int64_t* indptr, int64_t rows, const float* weight, int64_t edges, double* out, int threads) {
    FirstError error;
    const int workers = useful_threads(threads, edges + rows, 1 << 16);
#pragma omp parallel for schedule(dynamic, 4096) num_threads(workers) if (workers > 1)
    for (int64_t v = 0; v < rows; ++v) {
        const int64_t first = indptr[v], last = indptr[v + 1];
        if (first < 0 || last < first || last > edges) {
            error.set("the graph's indptr is corrupt");
            continue;
        }
        double sum = 0.0;
        for (int64_t e = first; e < last; ++e) out[e] = sum += static_cast<double>(weight[e]);
    }
    error.rethrow();
}

}  // namespace headrace
