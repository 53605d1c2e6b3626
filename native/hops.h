// A sample put together hop by hop from neighbors that were drawn elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sample.h"

namespace headrace {

// Of the rows that one drawer had: how many neighbors each takes, then the neighbors, row after row.
template <class Id>
struct DrawnRows {
    const Id* data;
    int64_t size;
};

// Numbers nodes as a sampler does, so that neighbors drawn with its keys give its samples. Of one caller at a time.
template <class Id>
class Hops {
public:
    using Id_ = Id;
    virtual ~Hops() = default;
    // Begins a sample; one that was begun before is dropped.
    virtual void begin(const int64_t* seeds, int64_t count, const std::shared_ptr<Pool>& pool) = 0;
    // The nodes to draw neighbors for, until the next call.
    virtual std::pair<const Id*, int64_t> frontier() const = 0;
    // Adds a hop: frontier node i is the next row of `drawn[drawer[i]]`.
    virtual void add(const int64_t* drawer, int64_t count, const std::vector<DrawnRows<Id>>& drawn, int threads) = 0;
    virtual SampleResult finish() = 0;
    virtual int64_t workspace_bytes() const = 0;  // kept between samples
};

// `hash`: de-duplicate by a hash table in place of an array over all nodes.
template <class Id>
std::unique_ptr<Hops<Id>> make_hops(int64_t nodes, bool hash);

}  // namespace headrace
