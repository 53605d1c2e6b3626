// Pairs of nodes to tell true edges from: drawn uniformly or by weight, and drawn again where they are edges.
#pragma once

#include <cstdint>

#include "vector.h"

namespace headrace {

struct NegativeRequest {
    uint64_t seed;
    uint32_t epoch;
    uint64_t batch;
    int64_t count;                                  // pairs to draw
    int64_t num_src, num_dst;                       // nodes on either side
    const double* src_cumulative = nullptr;         // running sums of the weights, or null for uniform
    const double* dst_cumulative = nullptr;
    const int64_t* src = nullptr;                   // sources that are given, or null to draw them too
    const int64_t* indptr = nullptr;                // edges to avoid, row v listing its sources; or null
    Ids indices;
    int64_t rows = 0, edges = 0;
    int64_t rounds = 1;                             // times a pair is drawn at the most
    int threads = 1;
};

// A node by weight, if there are running sums of weights, else by chance alone.
int64_t drawn_end(uint32_t high, uint32_t low, const double* cumulative, int64_t count);

// Fills `src` (unless it is given) and `dst`. Returns how many pairs are still edges after the last round.
int64_t draw_negatives(const NegativeRequest& request, int64_t* src, int64_t* dst);

}  // namespace headrace
