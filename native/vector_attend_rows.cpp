// The pass of attention's gradient over rows: target, attention, and what the pass over columns needs to know of a row. Compiled
// once per instruction set: HEADRACE_LEVEL names it; see vector.h.
#include "vector_attend.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

template <class E, bool pairs>
bool row_gradient(const Attention& in, int64_t begin, int64_t end, char* scratch, double* attention) {
    using S = typename E::Sum;
    using T = typename E::Type;
    using V = typename Heads<E>::V;
    Work<E> w(in, scratch);
    const Heads<E>& heads = w.heads;
    const S slope = static_cast<S>(in.slope);
    const S *source = static_cast<const S*>(in.source), *target = static_cast<const S*>(in.target);
    Ahead rows(in.indices, in.count, in.indptr[begin], in.x, w.row_bytes());
    Ahead sources(in.indices, in.count, in.indptr[begin], source, heads.heads * static_cast<int64_t>(sizeof(S)));
    const auto fact = [&](Fact f, int64_t, int64_t lane) { return V::load(w.near_fact[f] + lane); };
    const auto fill = [&](const Tiles& tiles) {  // scores, dots and dropout of a tile
        w.point(in.x, tiles.count, w.far);
        if constexpr (pairs)
            pair_scores(w, tiles.count, Request{tiles.begin, &rows}, in.slope);
        else
            look_up(source, heads.heads, heads.heads, w.node, tiles.count, heads.padded, Request{}, w.score);
        head_dots(w, w.far, tiles.count, pairs ? Request{} : Request{tiles.begin, &rows, &sources}, w.near_grad, w.dot);
        if (in.dropped) draw_keep(in, w, tiles.count);
    };
    for (int64_t v = begin; v < end; ++v) {
        const S* peak = static_cast<const S*>(in.peak) + 2 * v * heads.heads;
        widen(heads, w.row(in.grad, v), w.near_grad);
        repeat(heads, peak, w.near_fact[kPeak]);
        repeat(heads, peak + heads.heads, w.near_fact[kScale]);
        if constexpr (pairs)
            widen(heads, w.row(in.target, v), w.near);
        else
            repeat(heads, target + v * heads.heads, w.near_heads);

        int64_t filled = 0;
        if constexpr (sizeof(T) == sizeof(S)) {
            const T* out = w.row(in.out, v);
            head_dots(w, &out, 1, Request{}, w.near_grad, w.near_fact[kDelta]);
            repeat(heads, w.near_fact[kDelta], w.near_fact[kDelta]);
        } else {
            // A short `out` was rounded, and the gradients of a row nearly cancel: <grad, out> is summed from the entries instead.
            for (int64_t lane = 0; lane < heads.period; lane += heads.L) V{}.store(w.near_fact[kDelta] + lane);
            Tiles tiles(in, v);
            for (; tiles.next(w.node, w.position); ++filled) {
                fill(tiles);
                for (int64_t lane = 0; lane < heads.period; lane += heads.L)
                    for_vectors(heads, tiles.count, lane, [&](int64_t at) {
                        V rise, share = share_of<E, pairs>(in, w, at, lane, fact(kPeak, at, lane), fact(kScale, at, lane), rise);
                        if (in.dropped) share *= V::load(w.keep + at);
                        (share * V::load(w.dot + at)).store(w.fact[kDelta] + at);
                    });
                heads.clear_rest(w.fact[kDelta], tiles.count);
                add_entries(heads, w.fact[kDelta], tiles.count, w.near_fact[kDelta]);
            }
            if (!tiles.ok) return false;
        }
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
            if (filled != 1) fill(tiles);  // a single tile is still there
            differentiate<E, pairs>(in, w, tiles.count, fact);
            if constexpr (pairs)
                add_rows<true>(heads, w.far, tiles.count, w.dot, Request{}, [&](V far, int64_t column, V grad, V& sum, V& more) {
                    const V z = far + V::load(w.near + column), rise = leaky_rise(z, slope) * grad;
                    sum += rise;
                    more += rise * z;
                }, w.sums, w.more_sums);
            else
                add_entries(heads, w.dot, tiles.count, w.total);
        }
        if (!tiles.ok) return false;
        if constexpr (!pairs) {
            for (int64_t h = 0; h < heads.heads; ++h) static_cast<S*>(in.grad_target)[v * heads.heads + h] = w.total[h];
            continue;
        }
        if (in.grad_target) {
            T* to = static_cast<T*>(in.grad_target) + v * heads.width;
            for (int64_t s = 0; s < heads.slots; ++s)
                store_slot(heads, to, s, w.sums[s] * V::load(w.attention + heads.column[s]));
        }
        if (attention)
            for (int64_t s = 0; s < heads.slots; ++s) {
                S numbers[V::kLanes];
                w.more_sums[s].store(numbers);
                for (int64_t c = s * heads.L; c < (s + 1) * heads.L && c < heads.width; ++c)
                    attention[c] += static_cast<double>(numbers[c - heads.column[s]]);
            }
    }
    return true;
}

}  // namespace

bool attend_row_gradient(const Attention& in, int64_t begin, int64_t end, char* scratch, double* attention) {
    bool ok = true;
    with_element(in.element, [&]<class E>(E) {
        ok = in.attention ? row_gradient<E, true>(in, begin, end, scratch, attention)
                          : row_gradient<E, false>(in, begin, end, scratch, attention);
    });
    return ok;
}

}  // namespace headrace::HEADRACE_LEVEL
