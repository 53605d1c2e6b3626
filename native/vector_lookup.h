// The entries of an aggregation, and how many columns of a row a kernel sums at a time. For vector_*.cpp alone.
#pragma once

#include "vector_wide.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

// The sums of a row's columns are held in registers: half of them, the other half being for what is added.
constexpr int kTile = kRegister / 8;

// Looked up one at a time: addresses are checked before they are used. Plain: no coefficients, no ids, int32 indices, which is the
// common case and needs the fewest instructions.
enum class Kind { plain, unweighted, weighted };

template <class E, Kind kind>
struct Lookup {
    using S = typename E::Sum;
    using T = typename E::Type;
    const Entries in;
    const int64_t bytes;
    bool ok = true;

    explicit Lookup(const Entries& entries) : in(entries), bytes(in.width * static_cast<int64_t>(sizeof(T))) {}

    // The entries of row v, if indptr says what it may.
    HEADRACE_INLINE bool range(int64_t v, int64_t& from, int64_t& to) const {
        from = in.indptr[v], to = in.indptr[v + 1];
        return from >= 0 && to >= from && to <= in.count;
    }
    const T* row(int64_t e) {
        int64_t at = index(e);
        if (__builtin_expect(static_cast<uint64_t>(at) >= static_cast<uint64_t>(in.columns), 0)) at = fail();
        if (kind != Kind::plain && in.ids) {
            at = in.ids[at];
            if (__builtin_expect(static_cast<uint64_t>(at) >= static_cast<uint64_t>(in.x_rows), 0)) at = fail();
        }
        return reinterpret_cast<const T*>(in.x + at * in.x_stride);
    }
    S coefficient(int64_t e) {
        S c{1};
        if (in.weight) {
            int64_t at = in.position ? in.position[e] : e;
            if (__builtin_expect(static_cast<uint64_t>(at) >= static_cast<uint64_t>(in.count), 0)) at = fail();
            c = static_cast<const S*>(in.weight)[at];
        }
        if (in.scale) {
            int64_t at = in.indices[e];
            if (__builtin_expect(static_cast<uint64_t>(at) >= static_cast<uint64_t>(in.columns), 0)) at = fail();
            c *= static_cast<const S*>(in.scale)[at];
        }
        return c;
    }
    // Asks for `span` bytes of the row of entry e. A bad index is harmless here, but must not be followed.
    __attribute__((always_inline)) void request(int64_t e, int64_t span) const {
        if (e >= in.count) return;
        int64_t at = index(e);
        if (kind != Kind::plain && in.ids)
            at = static_cast<uint64_t>(at) < static_cast<uint64_t>(in.columns) ? in.ids[at] : 0;
        prefetch_row(unchecked(in.x, at, in.x_stride), span);
        if constexpr (kind == Kind::weighted) {
            if (in.position) __builtin_prefetch(unchecked(in.weight, in.position[e], sizeof(S)), 0, 3);
            if (in.scale) __builtin_prefetch(unchecked(in.scale, at, sizeof(S)), 0, 3);
        }
    }
    int64_t index(int64_t e) const {
        return kind == Kind::plain ? static_cast<const int32_t*>(in.indices.data)[e] : in.indices[e];
    }
    int64_t fail() {
        ok = false;
        return 0;
    }
};

template <Kind k>
struct KindIs {
    static constexpr Kind kind = k;
};

template <class Body>
inline void with_kind(const Entries& in, Body body) {
    if (in.weight || in.scale) return body(KindIs<Kind::weighted>{});
    if (in.ids || in.indices.wide) return body(KindIs<Kind::unweighted>{});
    body(KindIs<Kind::plain>{});
}

// A factor for row v, and whether mean divides by its entries too.
template <class S>
HEADRACE_INLINE S row_factor(const RowsOut& to, int64_t v, int64_t entries) {
    const S share = to.mean && entries > 0 ? S{1} / static_cast<S>(entries) : S{1};
    return to.row_scale ? share * static_cast<const S*>(to.row_scale)[v] : share;
}

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
