// Random graphs with planted communities: every number drawn is a function of (seed, what it is for), so the graph
// does not depend on the number of threads.
#pragma once

#include <cstdint>

#include "memory.h"
#include "philox.h"

namespace headrace {

// Nodes stand in "positions": classes are contiguous ranges of positions, blocks contiguous ranges within them.
struct Communities {
    int64_t nodes;
    const double* cumulative;      // running sum of the nodes' weights, nodes + 1 long, cumulative[nodes] = total
    const int64_t* class_ends;     // first position of each class, classes + 1 long
    const int32_t* class_of;       // class of each position
    int64_t block;                 // nodes of a block
    double within_block, within_class;  // shares of a node's edges; the rest goes to other classes
    double mean_degree;            // expected degree = mean_degree * nodes * weight / total
};

// Power-law weights with the given exponent of the degree distribution, cut at `most` times their mean.
void power_law_weights(uint64_t seed, double exponent, double most, int64_t nodes, double* out, int threads);

template <class Id>
struct Pairs {
    Array<Id> from, to;  // positions; from < to when undirected
};

// About `wanted` candidate edges: each node begins edges in proportion to its weight.
template <class Id>
Pairs<Id> candidate_edges(const Communities& c, uint64_t seed, uint32_t round, double wanted, bool undirected,
                          int threads);

// Of the entries of a CSR of positions, exactly `keep`, spread evenly, as edges between node ids `id[position]`.
template <class Id>
Pairs<Id> thin_edges(const int64_t* indptr, const Id* indices, int64_t rows, int64_t keep, const int64_t* id,
                     int threads);

// out[i] = center[label[i]] + standard normal noise, row by row.
void noisy_rows(uint64_t seed, const float* center, const int64_t* label, int64_t rows, int64_t width, float* out,
                int threads);

// 64 random bits per counter 0 .. count - 1 of stream (seed, epoch, purpose).
void random_words(uint64_t seed, uint32_t epoch, Purpose purpose, int64_t count, uint64_t* out, int threads);

}  // namespace headrace
