// Neighbor sampling: one batch of seeds expanded hop by hop, de-duplicated and relabeled.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pool.h"

namespace headrace {

// Nodes stand seeds first, then hop by hop in order of first appearance. Rows of the CSR are the nodes that were
// expanded, in the same order, so what hop h adds is a range of rows and what a layer needs is a prefix.
struct SampleResult {
    Buffer nodes;      // global ids, in the graph's index type
    Buffer indptr;     // int64, one more than the nodes expanded
    Buffer indices;    // int32, positions in `nodes`
    Buffer positions;  // int64, where each edge stands in the graph; only if asked for
    Buffer trees;      // int32, the tree of each node; only if trees are disjoint
    std::vector<int64_t> node_counts, edge_counts;  // seeds, then new ones per hop; edges per hop
};

struct SampleRequest {
    const int64_t* seeds;
    int64_t num_seeds;
    const void* times;  // of the seeds, in the type of the graph's; null where it has none
    uint64_t seed;
    uint32_t epoch;
    uint64_t batch;
    bool positions;  // also there where hops go by the times of edges
    int threads;
};

// The arrays must outlive the sampler. What is optional stands in the order of `indices`.
template <class Id>
struct SampleGraph {
    const int64_t* indptr;
    const Id* indices;
    int64_t nodes, edges;
    const float* weight = nullptr;       // positive: draw by weight
    const double* cumulative = nullptr;  // its sums within each row, where weighted draws are with replacement
    const void* time = nullptr;          // not decreasing within a row: only the past of a tree's seed counts
    bool real_time = false;              // times are float64 in place of int64
    const void* since = nullptr;         // one time: earlier edges do not count
};

struct SampleOptions {
    std::vector<int64_t> fanouts;
    bool replace = false;
    bool hash = false;      // de-duplicate by a hash table in place of an array over all nodes
    bool disjoint = false;  // every seed grows a tree of its own
    bool last = false;      // of the past, take the last in place of drawing
    bool inclusive = false; // a tree's own time counts as its past
    bool edge_time = false; // each edge leads to a node of its own, whose past is what lies before that edge
    bool labor = false;     // rows share the random numbers of their neighbors
    bool layer_dependency = false;
    uint32_t batch_dependency = 1;
};

template <class Id>
class Sampler {
public:
    using Id_ = Id;
    virtual ~Sampler() = default;
    virtual SampleResult sample(const SampleRequest& request, const std::shared_ptr<Pool>& pool) = 0;
    virtual int64_t workspace_bytes() const = 0;  // kept between batches, over all concurrent callers
};

template <class Id>
std::unique_ptr<Sampler<Id>> make_sampler(const SampleGraph<Id>& graph, SampleOptions options);

}  // namespace headrace
