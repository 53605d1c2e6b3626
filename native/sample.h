// Neighbour sampling: one batch of seeds expanded hop by hop, de-duplicated and relabelled.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
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
    std::vector<int64_t> node_counts, edge_counts;  // seeds, then new ones per hop; edges per hop
};

struct SampleRequest {
    const int64_t* seeds;
    int64_t num_seeds;
    uint64_t seed;
    uint32_t epoch;
    uint64_t batch;
    bool positions;
    int threads;
};

template <class Id>
class Sampler {
public:
    using Id_ = Id;
    // The arrays must outlive the sampler. `hash`: de-duplicate by a hash table in place of an array over all nodes.
    Sampler(const int64_t* indptr, const Id* indices, int64_t nodes, int64_t edges, std::vector<int64_t> fanouts,
            bool replace, bool hash);
    ~Sampler();
    SampleResult sample(const SampleRequest& request, const std::shared_ptr<Pool>& pool);
    int64_t workspace_bytes() const;  // kept between batches, over all concurrent callers

private:
    struct Workspace;
    template <class Table>
    SampleResult expand(const SampleRequest& request, const std::shared_ptr<Pool>& pool, Workspace& work,
                        Table& table);
    const int64_t* indptr_;
    const Id* indices_;
    int64_t nodes_, edges_;
    std::vector<int64_t> fanouts_;
    bool replace_, hash_;
    mutable std::mutex mutex_;
    std::vector<std::unique_ptr<Workspace>> idle_;
    std::vector<Workspace*> all_;
};

}  // namespace headrace
