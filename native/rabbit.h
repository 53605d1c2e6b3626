// Community order by incremental aggregation (Arai et al., "Rabbit Order", IPDPS 2016), written from the paper's algorithm.
#pragma once

#include <cstdint>
#include <functional>

#include "memory.h"

namespace headrace {

template <class Id>
struct Rows {
    const int64_t* indptr;
    const Id* indices;
};

// Told (nodes done, nodes in all) now and then; it may throw to stop the work.
using Tick = std::function<void(int64_t, int64_t)>;

// order[i] is the node that becomes i. `out` are the rows of the transposed graph, or nullptr where the graph is symmetric. One node
// is decided after the other, in ascending degree, each knowing all decisions before it: the result depends on nothing but the graph.
template <class Id>
Array<int64_t> rabbit_order(const Rows<Id>& in, const Rows<Id>* out, int64_t nodes, int threads, const Tick& tick);

}  // namespace headrace
