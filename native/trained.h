// Rows that are trained: parameters (float or bfloat16) with their optimizer's state (float), in parts that lie anywhere.
#pragma once

#include <cstdint>

namespace headrace {

struct TrainedTable {
    const int64_t* rows;   // [parts] where the rows of each part begin: addresses; 0 for a part that is not here
    const int64_t* state;  // [parts] the same of its state
    int64_t parts, rows_per_part, num_rows;
    int64_t width, state_width;
    bool half;  // rows are bfloat16
};

// Rows and states of `ids` as floats. Returns -1, or the first part that is wanted and not here: then nothing was written.
template <class Id>
int64_t gather_trained(const TrainedTable& table, const Id* ids, int64_t count, float* rows, float* state, int threads);

// Adds to the rows and states of `ids`, repeated ones in their order, and sets `touched` of the parts they are in; returns as
// above. A bfloat16 sum is rounded up or down at random, its mean the exact sum: draws are keyed by seed, call, id and column.
template <class Id>
int64_t add_trained(const TrainedTable& table, const Id* ids, int64_t count, const float* rows, const float* state,
                    uint64_t seed, uint64_t call, uint8_t* touched, int threads);

// Normal numbers of standard deviation `scale`, a function of seed, row and column alone. Row i of `out` is that of `begin + i`.
void normal_rows(uint64_t seed, int64_t begin, float scale, int64_t rows, int64_t width, float* out, int threads);

}  // namespace headrace
