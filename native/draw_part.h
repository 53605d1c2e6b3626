// Neighbors drawn from a part of a graph: one hop, for the batches of several askers at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "pool.h"
#include "vector.h"

namespace headrace {

// Some rows of a graph. `indices` name nodes of the whole one, and `nodes` says which of them each row is of.
template <class Id>
struct GraphPart {
    const int64_t* indptr;
    const Id *indices, *nodes;
    int64_t rows, edges;
    int64_t num_nodes;  // of the whole graph
};

// Rows to draw for, in groups: group g has the next sizes[g] of them, and draws with the key of its batch.
struct PartRequest {
    Ids rows;
    int64_t count;
    const int64_t* sizes;
    const uint64_t* keys;
    int64_t groups;
    int64_t fanout;
    uint32_t hop;
    bool replace;
    int threads;
};

// Of each group in turn: how many neighbors its rows take, then the neighbors, row after row, all in the type of ids. `lengths` are
// those of the groups.
template <class Id>
Buffer draw_part(const GraphPart<Id>& part, const PartRequest& request, const std::shared_ptr<Pool>& pool, int64_t* lengths);

}  // namespace headrace
