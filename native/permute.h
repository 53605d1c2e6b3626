// Rows in another order, and what an order is made from.
#pragma once

#include <cstdint>

#include "memory.h"

namespace headrace {

// position[order[i]] = i. Throws unless `order` holds every number below `count` once.
template <class Id>
void invert(const int64_t* order, int64_t count, Id* position, int threads);

template <class Id>
struct Permuted {
    Array<int64_t> indptr;
    Array<Id> indices;
};

// Row i is row order[i], its entries in their order, and every column is called by its new name.
template <class Id>
Permuted<Id> permute_csr(const int64_t* indptr, const Id* indices, int64_t rows, const int64_t* order, const Id* position,
                         int threads);

// What stands beside the entries, `bytes` for each, in the order of the permuted rows.
void permute_entries(const int64_t* indptr, const int64_t* permuted, int64_t rows, const int64_t* order, const char* values,
                     int64_t bytes, char* out, int threads);

// The least column of every row, `missing` where it has none.
template <class Id>
void least_columns(const int64_t* indptr, const Id* indices, int64_t rows, int64_t missing, int64_t* least, int threads);

}  // namespace headrace
