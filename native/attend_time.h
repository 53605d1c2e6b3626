// Attention over the events of a CSR, fused: row e of the entries is [x || edge_x || cos(weight * dt + bias)], made a tile at a
// time and never stored. Heads share the row; each has a query for it. Scores are kept for the gradient, one per entry and head.
// No atomics: every output row has one writer and adds its entries in order, so the result does not depend on the number of threads.
#pragma once

#include "vector.h"

namespace headrace {

// out, score and peak of every row. An empty row gives 0.
void attend_time(const TimeAttention& in, int threads);

// grad_query, grad_x where it is not null, and `time`, in the type of rows and null if it is not wanted: the gradients of weight and
// of bias, [2, time].
void attend_time_gradient(const TimeAttention& in, void* time, int threads);

}  // namespace headrace
