// Sum, mean and max of rows over the neighbors of a CSR, and their gradients. No atomics: every output row has one
// writer, and neighbors are added in order, so the result does not depend on the number of threads.
#pragma once

#include <cstdint>

#include "vector.h"

namespace headrace {

enum class Reduce { sum, mean, max };

// `row_scale`: a factor per row of out, in the accumulator's type, or null. `tile`: columns to sum at a time, in whole lines, 0 for
// what column_tile says (sum and mean only). `where` (max only): which entry of its row each output element came from, -1 in an
// empty row, whose output is 0.
void aggregate(const Entries& entries, Reduce reduce, const void* row_scale, int64_t tile, char* out, int32_t* where, int threads);

// out[u] = sum over the transpose's entries (v, e) of grad[v] where max took e: `entries` is the transpose with
// x = grad and position = e; `forward` is the indptr of the graph itself.
void max_gradient(const Entries& entries, const int64_t* forward, const int32_t* where, char* out, int threads);

// gradient of the weight of each entry: <grad[v], x[entry]>, over the columns max took from it if `where` is given.
void weight_gradient(const Entries& entries, const char* grad, const void* row_scale, const int32_t* where, void* out,
                     int threads);

}  // namespace headrace
