// What the machine allows: bare loops that do only the accesses a kernel cannot avoid, for the benchmarks.
// They are written apart from the kernels on purpose, check nothing and keep no promise about their results.
#pragma once

#include <cstdint>

namespace headrace {

struct BareSample {
    int64_t nodes, edges;
};

// One batch, without replacement, each hop expanding the nodes new to it. `stamp`: -1 for every node, restored.
// `nodes`, `sources`, `targets`: room for the largest possible sample.
BareSample bare_sample(const int64_t* indptr, const int32_t* indices, int32_t* stamp, const int64_t* seeds,
                       int64_t num_seeds, const int32_t* fanouts, int hops, int32_t* sources, int32_t* targets,
                       int64_t* nodes, uint64_t seed);

void bare_gather(char* out, const char* rows, int64_t row_bytes, const int64_t* ids, int64_t count, int threads);

// Sum over the neighbors, rows of kBareWidth elements, fp32 or bf16 (summed in fp32).
constexpr int64_t kBareWidth = 64;
void bare_sum(char* out, const char* x, bool bf16, const int64_t* indptr, const int32_t* indices, int64_t rows,
              int threads);

}  // namespace headrace
