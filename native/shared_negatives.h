// Negatives that all edges of a chunk share, and batches of edges with their negatives: every node by a number.
#pragma once

#include <cstdint>

#include "vector.h"

namespace headrace {

struct SharedDraws {
    uint64_t seed = 0;
    uint32_t epoch = 0;
    uint64_t batch = 0;
    int64_t chunks = 1, amount = 0;
    int64_t own = 0;                      // of each chunk's `amount`, the first ones: ends of the batch's own edges
    int64_t ends = 0;                     // ends there are
    int64_t ranges = 0;                   // of ids to draw the others from: range r starts with starts[r], and before[r] ids
    const int64_t* starts = nullptr;      // [ranges]     are in those before it
    const int64_t* before = nullptr;      // [ranges + 1]
    const double* cumulative = nullptr;   // [before[ranges]] running sums of the weights, or null for uniform
    int threads = 1;
    int64_t count() const { return chunks * amount; }
};

// Fills out[chunks * amount]: positions among the ends for the first `own` of a chunk, ids for the others.
void draw_shared(const SharedDraws& draws, int64_t* out);

struct EdgeNumbers {
    Ids triples;                          // [triple_count, 3]
    int64_t triple_count = 0;
    const int64_t* positions = nullptr;   // [edges] which of them
    int64_t edges = 0;
    int64_t* relation = nullptr;          // [edges]
    int64_t* nodes = nullptr;             // [2 edges + draws.count()] heads, tails, negatives
    int64_t* ids = nullptr;               // nodes without repeats, in order of first appearance
    int64_t* place = nullptr;             // where in `ids` each node is
};

// Fills what is not given; returns how many ids there are. `draws.ends` is twice the edges.
int64_t number_edges(const EdgeNumbers& edges, const SharedDraws& draws);

}  // namespace headrace
