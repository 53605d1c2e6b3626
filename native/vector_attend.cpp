// Attention over neighbors. Compiled once per instruction set: HEADRACE_LEVEL names it; see vector.h.
#include "vector_attend.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

template <class E, bool pairs>
bool forward(const Attention& in, int64_t begin, int64_t end, char* scratch) {
    using S = typename E::Sum;
    using V = typename Heads<E>::V;
    Work<E> w(in, scratch);
    const Heads<E>& heads = w.heads;
    const S slope = static_cast<S>(in.slope);
    const S *source = static_cast<const S*>(in.source), *target = static_cast<const S*>(in.target);
    Ahead rows(in.indices, in.count, in.indptr[begin], in.x, w.row_bytes());
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
                    const V near = V::load(w.near_heads + lane);
                    for_vectors(heads, count, lane,
                                [&](int64_t at) { leaky(V::load(w.score + at) + near, slope).store(w.score + at); });
                }
            }
            w.softmax.take(heads, w.score, count);
            if (any)
                for (int64_t s = 0; s < heads.slots; ++s) w.sums[s] *= Spread<E, Find::any>(heads, s)(w.softmax.shrink);
            if (in.dropped) {
                draw_keep(in, w, count);
                for (int64_t at = 0; at < heads.table(count); at += heads.L)
                    (V::load(w.score + at) * V::load(w.keep + at)).store(w.score + at);
            }
            add_rows<false>(heads, w.far, count, w.score, pairs ? Request{} : Request{tiles.begin, &rows, &sources},
                            [](V far, int64_t, V weight, V& sum, V&) { sum += far * weight; }, w.sums, w.sums);
            any = true;
        }
        if (!tiles.ok) return false;
        S *peak = static_cast<S*>(in.peak) + 2 * v * heads.heads, *scale = w.softmax.total;
        for (int64_t l = 0; l < heads.period; ++l) scale[l] = any ? S{1} / scale[l] : S{0};
        for (int64_t h = 0; h < heads.heads; ++h) {
            peak[h] = any ? w.softmax.peak[h] : S{0};
            peak[heads.heads + h] = scale[h];
        }
        auto* out = reinterpret_cast<typename E::Type*>(in.out) + v * heads.width;
        for (int64_t s = 0; s < heads.slots; ++s) store_slot(heads, out, s, w.sums[s] * Spread<E, Find::any>(heads, s)(scale));
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

}  // namespace headrace::HEADRACE_LEVEL
