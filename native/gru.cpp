#include "gru.h"

#include "common.h"

namespace headrace {
namespace {

template <class Task>
void for_rows(const GruRows& in, int threads, Task task) {
    threads = useful_threads(threads, in.rows * in.width, 1 << 13);
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
    for (int i = 0; i < threads; ++i) task(in, cut(in.rows, threads, i), cut(in.rows, threads, i + 1));
}

}  // namespace

void gru(const GruRows& in, int threads) { for_rows(in, threads, vector_table().gru); }
void gru_gradient(const GruRows& in, int threads) { for_rows(in, threads, vector_table().gru_gradient); }

}  // namespace headrace
