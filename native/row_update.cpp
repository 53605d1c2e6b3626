#include "row_update.h"

#include "common.h"

namespace headrace {

void row_updates(const RowUpdate& update, const float* grad, const float* state, int64_t rows, int64_t width, float* delta,
                 float* squares, int threads) {
    const VectorTable& vector = vector_table();
    if (width == 0) return;
    const int64_t state_width = update.state_width(width);
    threads = useful_threads(threads, rows * width, 1 << 15);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < rows; ++i)
        update.row(vector, grad + i * width, state + i * state_width, width, delta + i * width, squares + i * state_width);
}

}  // namespace headrace
