// Attention over neighbours and its gradients. Compiled once per instruction set: HEADRACE_LEVEL names it; see vector.h.
//
// A row's entries are taken a tile at a time, so that what is kept of each stays in the nearest cache. `near` is what belongs to
// the row at hand, `far` what its entries name; in the pass over columns the two have changed places.
#include "vector_philox.h"
#include "vector_softmax.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

constexpr int64_t kEntries = 128;  // of a tile
enum Fact { kPeak, kScale, kDelta, kTarget, kFacts };  // of a row and head: peak, 1 / total, <grad, out>, GAT's target

// Everything a pass needs beside its input. Tables hold one number per entry and head; "lanes" are tables of one entry.
template <class E>
struct Work {
    using S = typename E::Sum;
    using T = typename E::Type;
    using V = typename E::Vector;
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
    const T* row(const void* rows, int64_t v) const { return static_cast<const T*>(rows) + v * heads.width; }
    void point(const void* rows, int64_t count, const T** to) const {
        for (int64_t k = 0; k < count; ++k) to[k] = row(rows, node[k]);
    }
    void clear(V* slots) const {
        for (int64_t s = 0; s < heads.slots; ++s) slots[s] = V{};
    }
};

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
        if (e == end && own && count < kEntries) {
            node[count] = v;
            position[count++] = in.count + v;
            own = false;
        }
        return count > 0;
    }
};

// What dropout multiplies each coefficient by: word `head % 4` of the block (head / 4, position) decides.
template <class E>
void draw_keep(const Attention& in, const Work<E>& w, int64_t count) {
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

// table[k] = the `heads` numbers at numbers + node[k] * stride.
template <class S>
void look_up(const S* numbers, int64_t stride, int64_t heads, const int64_t* node, int64_t count, int64_t padded, Request request,
             S* table) {
    const auto copy = [&]<int N>(Slots<N>) {  // of a known size: no loop, and no call
        for (int64_t k = 0; k < count; ++k) {
            request(k);
            __builtin_memcpy(table + k * N, numbers + node[k] * stride, N * sizeof(S));
        }
    };
    if (heads == padded) switch (heads) {
            case 1: return copy(Slots<1>{});
            case 2: return copy(Slots<2>{});
            case 4: return copy(Slots<4>{});
            case 8: return copy(Slots<8>{});
            case 16: return copy(Slots<16>{});
        }
    for (int64_t k = 0; k < count; ++k) {
        request(k);
        for (int64_t h = 0; h < heads; ++h) table[k * padded + h] = numbers[node[k] * stride + h];
    }
}

// GATv2's score of each entry and head: <attention, leaky(near + far)>.
template <class E>
void pair_scores(const Work<E>& w, int64_t count, Request request, double slope) {
    const auto below = static_cast<typename E::Sum>(slope);
    head_sums(w.heads, w.far, count, request, [&]<class V>(V far, int64_t column) {
        return leaky(far + load_as<V>(w.near + column), below) * load_as<V>(w.attention + column);
    }, w.score);
}

// <with, row> of each entry and head.
template <class E>
void head_dots(const Work<E>& w, const typename E::Type* const* rows, int64_t count, Request request,
               const typename E::Sum* with, typename E::Sum* table) {
    head_sums(w.heads, rows, count, request,
              [&]<class V>(V far, int64_t column) { return far * load_as<V>(with + column); }, table);
}

template <class E, bool pairs>
bool forward(const Attention& in, int64_t begin, int64_t end, char* scratch) {
    using S = typename E::Sum;
    using V = typename E::Vector;
    Work<E> w(in, scratch);
    const Heads<E>& heads = w.heads;
    const S slope = static_cast<S>(in.slope);
    const S *source = static_cast<const S*>(in.source), *target = static_cast<const S*>(in.target);
    Ahead rows(in.indices, in.count, in.indptr[begin], in.x, heads.width * static_cast<int64_t>(sizeof(typename E::Type)));
    Ahead sources(in.indices, in.count, in.indptr[begin], source, heads.heads * static_cast<int64_t>(sizeof(S)));
    for (int64_t v = begin; v < end; ++v) {
        Tiles tiles(in, v);
        w.softmax.begin(heads);
        w.clear(w.sums);
        if constexpr (pairs)
            widen(heads, w.row(in.target, v), w.near);
        else
            repeat(heads, target + v * heads.heads, w.near_heads);
        bool any = false;
        while (tiles.next(w.node, w.position)) {
            const int64_t count = tiles.count;
            w.point(in.x, count, w.far);
            if constexpr (pairs) {
                pair_scores(w, count, Request{tiles.begin, &rows}, in.slope);
            } else {
                look_up(source, heads.heads, heads.heads, w.node, count, heads.padded, Request{}, w.score);
                for (int64_t lane = 0; lane < heads.period; lane += heads.L) {
                    const V near = load_as<V>(w.near_heads + lane);
                    for_vectors(heads, count, lane, [&](int64_t at) {
                        store_as(w.score + at, leaky(load_as<V>(w.score + at) + near, slope));
                    });
                }
            }
            w.softmax.take(heads, w.score, count);
            if (any)
                for (int64_t s = 0; s < heads.slots; ++s) w.sums[s] *= Spread<E, false>(heads, s)(w.softmax.shrink);
            if (in.dropped) {
                draw_keep(in, w, count);
                for (int64_t at = 0; at < heads.table(count); at += heads.L)
                    store_as(w.score + at, load_as<V>(w.score + at) * load_as<V>(w.keep + at));
            }
            weighted_sums(heads, w.far, count, w.score, pairs ? Request{} : Request{tiles.begin, &rows},
                          [](V far, int64_t) { return far; }, w.sums);
            any = true;
        }
        if (!tiles.ok) return false;
        S *out_peak = static_cast<S*>(in.peak) + 2 * v * heads.heads, *out_scale = out_peak + heads.heads, *total = w.softmax.total;
        for (int64_t l = 0; l < heads.period; ++l) total[l] = any ? S{1} / total[l] : S{0};
        for (int64_t h = 0; h < heads.heads; ++h) out_peak[h] = any ? w.softmax.peak[h] : S{0}, out_scale[h] = total[h];
        auto* out = reinterpret_cast<typename E::Type*>(in.out) + v * heads.width;
        for (int64_t s = 0; s < heads.slots; ++s)
            store_slot(heads, out, heads.column[s], w.sums[s] * Spread<E, false>(heads, s)(total));
    }
    return true;
}

// From a tile's scores and w.dot = <grad, x>: w.score becomes what the entry's x was multiplied by, w.dot the gradient of what leaky
// relu was taken of (GAT) or of the score (pairs). `fact(f, at, lane)`: of the row that the entry belongs to.
template <class E, bool pairs, class FactOf>
void differentiate(const Attention& in, const Work<E>& w, int64_t count, FactOf fact) {
    using S = typename E::Sum;
    using V = typename E::Vector;
    const Heads<E>& heads = w.heads;
    const S slope = static_cast<S>(in.slope);
    if (in.dropped) draw_keep(in, w, count);
    for (int64_t lane = 0; lane < heads.period; lane += heads.L)
        for_vectors(heads, count, lane, [&](int64_t at) {
            V score = load_as<V>(w.score + at), dot = load_as<V>(w.dot + at), rise = V{} + S{1};
            if constexpr (!pairs) {
                score += load_as<V>(w.near_heads + lane);
                rise = score > 0 ? rise : V{} + slope;
                score = leaky(score, slope);
            }
            const V share = exponential<E>(score - fact(kPeak, at, lane)) * fact(kScale, at, lane);
            const V keep = in.dropped ? load_as<V>(w.keep + at) : V{} + S{1};
            store_as(w.score + at, share * keep);
            store_as(w.dot + at, share * (dot * keep - fact(kDelta, at, lane)) * rise);
        });
    for (int64_t q = count * heads.padded; q < heads.table(count); ++q) w.dot[q] = 0;  // what stands behind the last entry
}

// The slope of leaky(near + far), over the columns of a slot.
template <class E>
auto rise_of(const Work<E>& w, double slope) {
    using V = typename E::Vector;
    const V one = V{} + typename E::Sum{1}, below = V{} + static_cast<typename E::Sum>(slope);
    return [&w, one, below](V far, int64_t column) { return far + load_as<V>(w.near + column) > 0 ? one : below; };
}

template <class E, bool pairs>
bool row_gradient(const Attention& in, int64_t begin, int64_t end, char* scratch, double* attention) {
    using S = typename E::Sum;
    using V = typename E::Vector;
    Work<E> w(in, scratch);
    const Heads<E>& heads = w.heads;
    const S slope = static_cast<S>(in.slope);
    const S *source = static_cast<const S*>(in.source), *target = static_cast<const S*>(in.target);
    Ahead rows(in.indices, in.count, in.indptr[begin], in.x, heads.width * static_cast<int64_t>(sizeof(typename E::Type)));
    Ahead sources(in.indices, in.count, in.indptr[begin], source, heads.heads * static_cast<int64_t>(sizeof(S)));
    const auto rise = rise_of(w, in.slope);
    for (int64_t v = begin; v < end; ++v) {
        const S* peak = static_cast<const S*>(in.peak) + 2 * v * heads.heads;
        const auto* out = w.row(in.out, v);
        widen(heads, w.row(in.grad, v), w.near_grad);
        head_dots(w, &out, 1, Request{}, w.near_grad, w.near_fact[kDelta]);
        repeat(heads, w.near_fact[kDelta], w.near_fact[kDelta]);
        repeat(heads, peak, w.near_fact[kPeak]);
        repeat(heads, peak + heads.heads, w.near_fact[kScale]);
        if constexpr (pairs)
            widen(heads, w.row(in.target, v), w.near);
        else
            repeat(heads, target + v * heads.heads, w.near_heads);
        if (in.facts) {
            S* facts = static_cast<S*>(in.facts) + v * kFacts * heads.padded;
            const S* kept[kFacts] = {w.near_fact[kPeak], w.near_fact[kScale], w.near_fact[kDelta], w.near_heads};
            for (int f = 0; f < kFacts; ++f)
                for (int64_t h = 0; h < heads.padded; ++h) facts[f * heads.padded + h] = kept[f][h];
        }
        if (!in.grad_target && !attention) continue;

        Tiles tiles(in, v);
        w.clear(w.sums);
        w.clear(w.more_sums);
        for (int64_t l = 0; l < heads.period; ++l) w.total[l] = 0;
        while (tiles.next(w.node, w.position)) {
            const int64_t count = tiles.count;
            w.point(in.x, count, w.far);
            if constexpr (pairs)
                pair_scores(w, count, Request{tiles.begin, &rows}, in.slope);
            else
                look_up(source, heads.heads, heads.heads, w.node, count, heads.padded, Request{}, w.score);
            head_dots(w, w.far, count, pairs ? Request{} : Request{tiles.begin, &rows}, w.near_grad, w.dot);
            differentiate<E, pairs>(in, w, count, [&](Fact f, int64_t, int64_t lane) { return load_as<V>(w.near_fact[f] + lane); });
            if constexpr (pairs) {
                if (in.grad_target) weighted_sums(heads, w.far, count, w.dot, Request{}, rise, w.sums);
                if (attention)
                    weighted_sums(heads, w.far, count, w.dot, Request{},
                                  [&](V far, int64_t column) { return leaky(far + load_as<V>(w.near + column), slope); },
                                  w.more_sums);
            } else {
                add_entries(heads, w.dot, count, w.total);
            }
        }
        if (!tiles.ok) return false;
        if constexpr (pairs) {
            if (in.grad_target) {
                auto* to = static_cast<typename E::Type*>(in.grad_target) + v * heads.width;
                for (int64_t s = 0; s < heads.slots; ++s)
                    store_slot(heads, to, heads.column[s], w.sums[s] * load_as<V>(w.attention + heads.column[s]));
            }
            if (attention)
                for (int64_t s = 0; s < heads.slots; ++s)
                    for (int64_t c = s * heads.L; c < (s + 1) * heads.L && c < heads.width; ++c)
                        attention[c] += static_cast<double>(w.more_sums[s][c - heads.column[s]]);
        } else {
            for (int64_t h = 0; h < heads.heads; ++h) static_cast<S*>(in.grad_target)[v * heads.heads + h] = w.total[h];
        }
    }
    return true;
}

template <class E, bool pairs>
bool column_gradient(const Attention& in, int64_t begin, int64_t end, char* scratch) {
    using S = typename E::Sum;
    using V = typename E::Vector;
    Work<E> w(in, scratch);
    const Heads<E>& heads = w.heads;
    const S *facts = static_cast<const S*>(in.facts), *source = static_cast<const S*>(in.source);
    const int64_t first = in.indptr[begin], fact_stride = kFacts * heads.padded;
    const int64_t row_bytes = heads.width * static_cast<int64_t>(sizeof(typename E::Type));
    Ahead grads(in.indices, in.count, first, in.grad, row_bytes), targets(in.indices, in.count, first, in.target, row_bytes);
    Ahead known(in.indices, in.count, first, facts, fact_stride * static_cast<int64_t>(sizeof(S)));
    const auto rise = rise_of(w, in.slope);
    for (int64_t v = begin; v < end; ++v) {
        Tiles tiles(in, v);
        w.clear(w.sums);
        w.clear(w.more_sums);
        for (int64_t l = 0; l < heads.period; ++l) w.total[l] = 0;
        widen(heads, w.row(in.x, v), w.near);
        if constexpr (!pairs) repeat(heads, source + v * heads.heads, w.near_heads);
        while (tiles.next(w.node, w.position)) {
            const int64_t count = tiles.count;
            const Request grad_rows{tiles.begin, &grads};
            for (int f = 0; f < (pairs ? kTarget : kFacts); ++f)
                look_up(facts + f * heads.padded, fact_stride, heads.padded, w.node, count, heads.padded,
                        f ? Request{} : Request{tiles.begin, &known}, f == kTarget ? w.score : w.fact[f]);
            w.point(in.grad, count, w.far_grad);
            if constexpr (pairs) {
                w.point(in.target, count, w.far);
                pair_scores(w, count, Request{tiles.begin, &targets}, in.slope);
            }
            const bool dots = pairs || in.grad_source;
            if (dots) head_dots(w, w.far_grad, count, grad_rows, w.near, w.dot);
            differentiate<E, pairs>(in, w, count, [&](Fact f, int64_t at, int64_t) { return load_as<V>(w.fact[f] + at); });
            if (in.grad_x)
                weighted_sums(heads, w.far_grad, count, w.score, dots ? Request{} : grad_rows, [](V grad, int64_t) { return grad; },
                              w.sums);
            if constexpr (pairs)
                weighted_sums(heads, w.far, count, w.dot, Request{}, rise, w.more_sums);
            else
                add_entries(heads, w.dot, count, w.total);
        }
        if (!tiles.ok) return false;
        if (in.grad_x) {
            auto* to = reinterpret_cast<typename E::Type*>(in.grad_x) + v * heads.width;
            for (int64_t s = 0; s < heads.slots; ++s) {
                V sum = w.sums[s];
                if constexpr (pairs) sum += w.more_sums[s] * load_as<V>(w.attention + heads.column[s]);
                store_slot(heads, to, heads.column[s], sum);
            }
        }
        if (in.grad_source)
            for (int64_t h = 0; h < heads.heads; ++h) static_cast<S*>(in.grad_source)[v * heads.heads + h] = w.total[h];
    }
    return true;
}

}  // namespace

int64_t attend_scratch(const Attention& in) {
    int64_t bytes = 0;
    with_element(in.element, [&]<class E>(E) { bytes = Work<E>(in, nullptr).arena.used(); });
    return bytes;
}

bool attend(const Attention& in, int64_t begin, int64_t end, char* scratch) {
    bool ok = true;
    with_element(in.element, [&]<class E>(E) {
        ok = in.attention ? forward<E, true>(in, begin, end, scratch) : forward<E, false>(in, begin, end, scratch);
    });
    return ok;
}

bool attend_row_gradient(const Attention& in, int64_t begin, int64_t end, char* scratch, double* attention) {
    bool ok = true;
    with_element(in.element, [&]<class E>(E) {
        ok = in.attention ? row_gradient<E, true>(in, begin, end, scratch, attention)
                          : row_gradient<E, false>(in, begin, end, scratch, attention);
    });
    return ok;
}

bool attend_column_gradient(const Attention& in, int64_t begin, int64_t end, char* scratch) {
    bool ok = true;
    with_element(in.element, [&]<class E>(E) {
        ok = in.attention ? column_gradient<E, true>(in, begin, end, scratch) : column_gradient<E, false>(in, begin, end, scratch);
    });
    return ok;
}

}  // namespace headrace::HEADRACE_LEVEL
