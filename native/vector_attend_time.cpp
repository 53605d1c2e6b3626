// Attention over events. Compiled once per instruction set: HEADRACE_LEVEL names it; see vector.h.
#include "vector_attend_time.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

template <class E>
bool forward(const TimeAttention& in, int64_t first, int64_t last, char* scratch) {
    using S = typename E::Sum;
    using V = Wide<S, 64>;
    constexpr int64_t L = V::kLanes;
    EventWork<E> w(in, scratch);
    const S slope = static_cast<S>(in.slope);
    for (int64_t v = first; v < last; ++v) {
        int64_t begin, end;
        if (!w.span(v, begin, end)) return false;
        w.load(in.query, v, w.query);
        w.clear(w.sum);
        for (int64_t h = 0; h < w.heads; ++h) w.peak[h] = begin < end ? -static_cast<S>(__builtin_inf()) : S{0}, w.total[h] = 0;
        for (int64_t at = begin; at < end; at += kEvents) {
            const int64_t count = end - at < kEvents ? end - at : kEvents;
            if (!w.template fill<false>(at, count)) return false;
            w.dots(w.query, count, w.score);
            S* scores = static_cast<S*>(in.score) + at * w.heads;
            for (int64_t h = 0; h < w.heads; ++h) {
                S* mine = w.score + h * kEvents;
                S most = w.peak[h];
                for (int64_t k = 0; k < count; ++k) {
                    mine[k] = leaky(mine[k], slope);
                    scores[k * w.heads + h] = mine[k];
                    most = mine[k] > most ? mine[k] : most;
                }
                for (int64_t k = count; k < EventWork<E>::padded(count); ++k) mine[k] = -static_cast<S>(__builtin_inf());
                V powers{};
                for (int64_t k = 0; k < count; k += L) {
                    const V power = exponential(V::load(mine + k) - V::all(most));
                    power.store(mine + k);
                    powers += power;
                }
                if (at > begin) {  // a larger score may have come: what was summed before shrinks
                    S shrink[L];
                    exponential(V::all(w.peak[h]) - V::all(most)).store(shrink);
                    w.total[h] *= shrink[0];
                    for (int64_t j = 0; j < w.stride; j += L)
                        (V::load(w.sum + h * w.stride + j) * V::all(shrink[0])).store(w.sum + h * w.stride + j);
                }
                w.total[h] += lane_sum(powers);
                w.peak[h] = most;
            }
            if (in.dropped) {
                w.draw(at, count);
                for (int64_t h = 0; h < w.heads; ++h)
                    for (int64_t k = 0; k < count; ++k) w.score[h * kEvents + k] *= w.keep[h * kEvents + k];
            }
            w.add(w.score, count, w.sum);
        }
        S* peak = static_cast<S*>(in.peak) + 2 * v * w.heads;
        for (int64_t h = 0; h < w.heads; ++h) {
            const S scale = begin < end ? S{1} / w.total[h] : S{0};
            peak[h] = w.peak[h];
            peak[w.heads + h] = scale;
            for (int64_t j = 0; j < w.stride; j += L)
                (V::load(w.sum + h * w.stride + j) * V::all(scale)).store(w.sum + h * w.stride + j);
        }
        w.store(w.sum, v, in.out);
    }
    return true;
}

}  // namespace

int64_t attend_time_scratch(const TimeAttention& in) {
    int64_t bytes = 0;
    with_real(in.element, [&]<class E>(E) {
        bytes = EventWork<E>(in, nullptr).arena.used();
        return true;
    });
    return bytes;
}

bool attend_time(const TimeAttention& in, int64_t begin, int64_t end, char* scratch) {
    return with_real(in.element, [&]<class E>(E) { return forward<E>(in, begin, end, scratch); });
}

}  // namespace headrace::HEADRACE_LEVEL
