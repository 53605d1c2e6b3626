// Compressed rows from edges: a parallel, stable, two-level counting sort, and what is built on it.
#pragma once

#include <cstdint>

#include "memory.h"

namespace headrace {

template <class Id>
struct IdRange {
    Id least, most;
};

template <class Id>
IdRange<Id> id_range(const Id* ids, int64_t count, int threads);

enum class SelfLoops { keep, add, drop };

template <class Out, class Position>
struct Csr {
    Array<int64_t> indptr;
    Array<Out> indices;
    Array<Position> position;  // where each entry stood in the input, -1 for an added self loop; empty unless asked for
};

struct BuildOptions {
    int64_t num_nodes;
    bool undirected, deduplicate, positions;
    SelfLoops self_loops;
    int threads;
};

// Row v lists the sources of the edges into v, in input order (by source where duplicates are removed).
template <class In, class Out, class Position>
Csr<Out, Position> build_csr(const In* src, const In* dst, int64_t edges, const BuildOptions& options);

// Row u of the result lists the rows of the input in which u stands, in row order.
template <class Id, class Position>
Csr<Id, Position> transpose_csr(const int64_t* indptr, const Id* indices, int64_t rows, int64_t columns,
                                bool positions, int threads);

// columns[e] and rows[e] of every entry, as int64.
template <class Id>
void expand_csr(const int64_t* indptr, const Id* indices, int64_t rows, int64_t* columns, int64_t* row_of, int threads);

// Throws unless indptr rises from 0 to `entries` and every index lies in [0, columns).
template <class Id>
void check_csr(const int64_t* indptr, const Id* indices, int64_t rows, int64_t entries, int64_t columns,
               int threads);

}  // namespace headrace
