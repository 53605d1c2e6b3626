// What a graph is like: degrees, spans, columns shared by neighboring rows, and whether it equals its reverse.
#pragma once

#include <cstdint>

namespace headrace {

struct Summary {
    int64_t max_degree, empty_rows, unread, isolated, hubs;  // unread: no row's column
    double span, squares;                                    // of |row - column|, of the squared degrees: sums
    bool symmetric;
};

// One pass over checked rows. `hub` is the degree above which a row counts as one;  Symmetry is told
// by a fingerprint of 128 bits: the sum over edges of hash(u, v) - hash(v, u), which is zero if, and but for chance only if, edges and
// reversed edges are the same multiset.
template <class Id>
Summary summarize(const int64_t* indptr, const Id* indices, int64_t rows, double hub, int threads);

struct Reuse {
    int64_t entries, unique;
};

// Entries and unique columns of windows of `window` rows, taken in the order given (nullptr: as they stand); at most `sample` of them,
// evenly spread.
template <class Id>
Reuse window_reuse(const int64_t* indptr, const Id* indices, int64_t rows, const int64_t* order, int64_t window, int64_t sample,
                   int threads);

}  // namespace headrace
