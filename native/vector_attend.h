// What attention and its gradients share: a row's entries a tile at a time, so that what is kept of each stays in the nearest
// cache, and their scores. For vector_*.cpp alone.
//
// `near` is what belongs to the row at hand, `far` what its entries name; in the pass over columns the two have changed places.
#pragma once

#include "vector_philox.h"
#include "vector_softmax.h"
#include "vector_tables.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

constexpr int64_t kEntries = 128;  // of a tile
enum Fact { kPeak, kScale, kDelta, kTarget, kFacts };  // of a row and head: peak, 1 / total, <grad, out>, GAT's target

// Everything a pass needs beside its input. Tables hold one number per entry and head; "lanes" are tables of one entry.
template <class E>
struct Work {
    using S = typename E::Sum;
    using T = typename E::Type;
    using V = typename Heads<E>::V;
    Arena arena;
    const Heads<E> heads;
    Softmax<E> softmax;
    int64_t *node, *position;                   // of a tile's entries
    const T **far, **far_grad;                  // their rows
    S *score, *dot, *keep, *fact[kFacts];       // tables
    S *near_heads, *near_fact[kFacts], *total;  // lanes
    S *near, *near_grad, *attention;            // rows
    V *sums, *more_sums;                        // slots of a row

    Work(const Attention& in, char* scratch)
        : arena(scratch), heads(in.heads, in.channels, arena), softmax(heads, arena) {
        node = arena.take<int64_t>(kEntries), position = arena.take<int64_t>(kEntries);
        far = arena.take<const T*>(kEntries), far_grad = arena.take<const T*>(kEntries);
        const int64_t table = heads.table_room(kEntries), lanes = heads.table_room(1), row = heads.row_room();
        score = arena.take<S>(table), dot = arena.take<S>(table), keep = arena.take<S>(table);
        near_heads = arena.take<S>(lanes), total = arena.take<S>(lanes);
        for (int f = 0; f < kFacts; ++f) fact[f] = arena.take<S>(table), near_fact[f] = arena.take<S>(lanes);
        near = arena.take<S>(row), near_grad = arena.take<S>(row), attention = arena.take<S>(row);
        sums = arena.take<V>(heads.slots), more_sums = arena.take<V>(heads.slots);
        if (scratch && in.attention)
            __builtin_memcpy(attention, in.attention, static_cast<size_t>(heads.width) * sizeof(S));
    }
    int64_t row_bytes() const { return heads.width * static_cast<int64_t>(sizeof(T)); }
    const T* row(const void* rows, int64_t v) const { return static_cast<const T*>(rows) + v * heads.width; }
    void point(const void* rows, int64_t count, const T** to) const {
        for (int64_t k = 0; k < count; ++k) to[k] = row(rows, node[k]);
    }
    void clear(V* slots) const {
        for (int64_t s = 0; s < heads.slots; ++s) slots[s] = V{};
    }
};

// Wraps around: nobody has checked positions, which only name draws.
HEADRACE_INLINE int64_t moved(int64_t position, int64_t by) {
    return static_cast<int64_t>(static_cast<uint64_t>(position) + static_cast<uint64_t>(by));
}

// The entries of one row, a tile at a time: those that name the row are left out if it has one of its own, which comes last.
struct Tiles {
    const Attention& in;
    const int64_t v;
    int64_t e, end;
    bool own, ok;
    int64_t begin = 0, count = 0;  // of the tile: its first entry, and how many it has

    Tiles(const Attention& in_, int64_t v_) : in(in_), v(v_), e(in.indptr[v]), end(in.indptr[v + 1]), own(v < in.own) {
        ok = e >= 0 && e <= end && end <= in.count;
        if (!ok) e = end = 0, own = false;
    }
    bool next(int64_t* node, int64_t* position) {
        begin = e;
        count = 0;
        const bool looped = v < in.own;
        for (; e < end && count < kEntries; ++e) {
            const int64_t at = in.indices[e];
            if (__builtin_expect(static_cast<uint64_t>(at) >= static_cast<uint64_t>(in.columns), 0)) return ok = false;
            if (looped && at == v) continue;
            node[count] = at;
            position[count++] = in.position ? in.position[e] : e;
        }
        if (in.shift)
            for (int64_t k = 0; k < count; ++k) position[k] = moved(position[k], in.shift[in.position ? node[k] : v]);
        if (e == end && own && count < kEntries) {
            node[count] = v;
            position[count++] = in.whole_rows ? moved(in.whole_count, in.whole_rows[v]) : in.count + v;
            own = false;
        }
        return count > 0;
    }
};

// What dropout multiplies each coefficient by: word `head % 4` of the block (head / 4, position) decides.
template <class E>
inline void draw_keep(const Attention& in, const Work<E>& w, int64_t count) {
    using S = typename E::Sum;
    const int64_t blocks = (in.heads + 3) / 4, padded = w.heads.padded, wide = padded < 4 ? padded : 4;
    const S kept = static_cast<S>(in.kept);
    Counters counters{};
    S* to[8];
    uint32_t words[32];
    int filled = 0;
    const auto draw = [&] {
        philox8(in.key, 0, counters, words);
        for (int i = 0; i < filled; ++i)
            for (int64_t j = 0; j < wide; ++j) to[i][j] = words[4 * i + j] < in.dropped ? S{0} : kept;
        filled = 0;
    };
    for (int64_t k = 0; k < count; ++k) {
        const uint64_t position = static_cast<uint64_t>(w.position[k]);
        for (int64_t block = 0; block < blocks; ++block) {
            counters.first[filled] = static_cast<uint64_t>(block);
            counters.second[filled] = position & 0xFFFFFFFFu;
            counters.third[filled] = position >> 32;
            to[filled] = w.keep + k * padded + 4 * block;
            if (++filled == 8) draw();
        }
    }
    if (filled) draw();
}

// GATv2's score of each entry and head: <attention, leaky(near + far)>.
template <class E>
inline void pair_scores(const Work<E>& w, int64_t count, Request request, double slope) {
    const auto below = static_cast<typename E::Sum>(slope);
    head_sums(w.heads, w.far, count, request, [&]<class V>(V far, int64_t column) {
        return leaky(far + load_sums<V>(w.near + column), below) * load_sums<V>(w.attention + column);
    }, w.score);
}

// <with, row> of each entry and head.
template <class E>
inline void head_dots(const Work<E>& w, const typename E::Type* const* rows, int64_t count, Request request,
                      const typename E::Sum* with, typename E::Sum* table) {
    head_sums(w.heads, rows, count, request,
              [&]<class V>(V far, int64_t column) { return far * load_sums<V>(with + column); }, table);
}

// The softmax recomputed: the coefficients of a vector of w.score before dropout, from the facts of the rows they belong to.
// GAT: `rise` becomes the slope of leaky relu there.
template <class E, bool pairs, class V>
HEADRACE_INLINE V share_of(const Attention& in, const Work<E>& w, int64_t at, int64_t lane, V peak, V scale, V& rise) {
    const auto slope = static_cast<typename E::Sum>(in.slope);
    V score = V::load(w.score + at);
    if constexpr (!pairs) {
        score += V::load(w.near_heads + lane);
        rise = leaky_rise(score, slope);
        score = leaky(score, slope);
    }
    return exponential(score - peak) * scale;
}

// From a tile's scores and w.dot = <grad, x>: w.score becomes what the entry's x was multiplied by, w.dot the gradient of what
// leaky relu was taken of (GAT) or of the score (pairs). `fact(f, at, lane)`: of the row that the entry belongs to.
template <class E, bool pairs, class FactOf>
inline void differentiate(const Attention& in, const Work<E>& w, int64_t count, FactOf fact) {
    using V = typename Heads<E>::V;
    for (int64_t lane = 0; lane < w.heads.period; lane += V::kLanes)
        for_vectors(w.heads, count, lane, [&](int64_t at) {
            V rise = V::all(1);
            const V share = share_of<E, pairs>(in, w, at, lane, fact(kPeak, at, lane), fact(kScale, at, lane), rise);
            const V keep = in.dropped ? V::load(w.keep + at) : V::all(1), dot = V::load(w.dot + at) * keep;
            (share * keep).store(w.score + at);
            (share * (dot - fact(kDelta, at, lane)) * rise).store(w.dot + at);
        });
    w.heads.clear_rest(w.dot, count);
}

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
