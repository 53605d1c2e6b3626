// The pass of attention's gradient over columns, which are the rows of the transpose: x and source. Compiled once per instruction
// set: HEADRACE_LEVEL names it; see vector.h.
#include "vector_attend.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

template <class E, bool pairs>
bool column_gradient(const Attention& in, int64_t begin, int64_t end, char* scratch) {
    using S = typename E::Sum;
    using V = typename Heads<E>::V;
    Work<E> w(in, scratch);
    const Heads<E>& heads = w.heads;
    const S slope = static_cast<S>(in.slope);
    const S *facts = static_cast<const S*>(in.facts), *source = static_cast<const S*>(in.source);
    const int64_t first = in.indptr[begin], stride = kFacts * heads.padded;
    Ahead grads(in.indices, in.count, first, in.grad, w.row_bytes());
    Ahead targets(in.indices, in.count, first, in.target, w.row_bytes());
    Ahead known(in.indices, in.count, first, facts, stride * static_cast<int64_t>(sizeof(S)));
    for (int64_t v = begin; v < end; ++v) {
        Tiles tiles(in, v);
        w.clear(w.sums);
        w.clear(w.more_sums);
        for (int64_t l = 0; l < heads.period; ++l) w.total[l] = 0;
        widen(heads, w.row(in.x, v), w.near);
        if constexpr (!pairs) repeat(heads, source + v * heads.heads, w.near_heads);
        while (tiles.next(w.node, w.position)) {
            const int64_t count = tiles.count;
            for (int f = 0; f < (pairs ? kTarget : kFacts); ++f)
                look_up(facts + f * heads.padded, stride, heads.padded, w.node, count, heads.padded, Request{},
                        f == kTarget ? w.score : w.fact[f]);
            if constexpr (pairs) {
                w.point(in.target, count, w.far);
                pair_scores(w, count, Request{tiles.begin, &targets}, in.slope);
            }
            w.point(in.grad, count, w.far_grad);
            const Request ahead{tiles.begin, &grads, &known};
            const bool dots = pairs || in.grad_source;
            if (dots) head_dots(w, w.far_grad, count, ahead, w.near, w.dot);
            if (in.dropped) draw_keep(in, w, count);
            differentiate<E, pairs>(in, w, count, [&](Fact f, int64_t at, int64_t) { return V::load(w.fact[f] + at); });
            if (in.grad_x)
                add_rows<false>(heads, w.far_grad, count, w.score, dots ? Request{} : ahead,
                                [](V grad, int64_t, V weight, V& sum, V&) { sum += grad * weight; }, w.sums, w.sums);
            if constexpr (pairs)
                add_rows<false>(heads, w.far, count, w.dot, Request{}, [&](V far, int64_t column, V grad, V& sum, V&) {
                    sum += leaky_rise(far + V::load(w.near + column), slope) * grad;
                }, w.more_sums, w.more_sums);
            else
                add_entries(heads, w.dot, count, w.total);
        }
        if (!tiles.ok) return false;
        if (in.grad_x) {
            auto* to = reinterpret_cast<typename E::Type*>(in.grad_x) + v * heads.width;
            for (int64_t s = 0; s < heads.slots; ++s) {
                V sum = w.sums[s];
                if constexpr (pairs) sum += w.more_sums[s] * V::load(w.attention + heads.column[s]);
                store_slot(heads, to, s, sum);
            }
        }
        if (in.grad_source)
            for (int64_t h = 0; h < heads.heads; ++h) static_cast<S*>(in.grad_source)[v * heads.heads + h] = w.total[h];
    }
    return true;
}

}  // namespace

bool attend_column_gradient(const Attention& in, int64_t begin, int64_t end, char* scratch) {
    bool ok = true;
    with_element(in.element, [&]<class E>(E) {
        ok = in.attention ? column_gradient<E, true>(in, begin, end, scratch) : column_gradient<E, false>(in, begin, end, scratch);
    });
    return ok;
}

}  // namespace headrace::HEADRACE_LEVEL
