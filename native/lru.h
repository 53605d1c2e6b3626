// How often an aggregation finds a row in a cache: a simulation on samples of its reads.
#pragma once

#include <cstdint>

namespace headrace {

struct Reads {
    int64_t counted, missed;
};

// Rows are visited in the order given (nullptr: as they stand) and every column is a read of a cache of `capacity` rows that drops
// the one used longest ago. At most `windows` runs of consecutive rows, evenly spread, are looked at: each warms the cache until it is
// full (or 16 times its capacity was read), and then counts max(capacity, 2^16) reads. Where that is no less than the whole graph,
// all of it is read once, and the first touch of every row is a miss.
template <class Id>
Reads simulate_lru(const int64_t* indptr, const Id* indices, int64_t rows, const int64_t* order, int64_t capacity, int64_t windows,
                   int threads);

}  // namespace headrace
