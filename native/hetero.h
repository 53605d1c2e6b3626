// Neighbor sampling where nodes and edges have types: one node list per node type, one CSR per edge type.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pool.h"
#include "shelf.h"
#include "vector.h"

namespace headrace {

// The edges of one type: row v, of the target's type, lists nodes of the source's type.
struct Relation {
    const int64_t* indptr;
    Ids indices;
    int64_t rows, edges;
    int64_t source, target;        // node types
    std::vector<int64_t> fanouts;  // one per hop
};

struct HeteroRequest {
    std::vector<const int64_t*> seeds;  // per node type
    std::vector<int64_t> num_seeds;
    uint64_t seed;
    uint32_t epoch;
    uint64_t batch;
    int threads;
};

// Nodes of a type stand seeds first, then hop by hop in order of first appearance, edge types taken in their order within
// a hop. The rows of an edge type's CSR are the expanded nodes of its target type, in the same order.
struct HeteroResult {
    std::vector<Buffer> nodes;                      // int64 global ids, per node type
    std::vector<Buffer> indptr, indices, positions;  // int64, int32 local ids, int64 places in the graph; per edge type
    std::vector<std::vector<int64_t>> node_counts;  // per node type: seeds, then new ones per hop
    std::vector<std::vector<int64_t>> edge_counts;  // per edge type: edges per hop
};

class HeteroSampler {
public:
    // The arrays must outlive the sampler. `hash[t]`: nodes of type t are de-duplicated by a hash table in place of an array.
    HeteroSampler(std::vector<int64_t> num_nodes, std::vector<Relation> relations, size_t hops, bool replace,
                  std::vector<bool> hash);
    ~HeteroSampler();
    HeteroResult sample(const HeteroRequest& request, const std::shared_ptr<Pool>& pool);
    int64_t workspace_bytes() const;  // kept between batches, over all concurrent callers
    size_t num_types() const { return num_nodes_.size(); }
    int64_t target(size_t relation) const { return relations_[relation].target; }

private:
    struct Workspace;
    HeteroResult expand(const HeteroRequest& request, const std::shared_ptr<Pool>& pool, Workspace& work);
    std::vector<int64_t> num_nodes_;
    std::vector<Relation> relations_;
    size_t hops_;
    bool replace_;
    std::vector<bool> hash_;
    Shelf<Workspace> shelf_;
};

}  // namespace headrace
