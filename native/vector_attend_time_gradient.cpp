// The gradients of attention over events: a pass over rows for the query and the time encoding, and one over the rows of x. Compiled
// once per instruction set: HEADRACE_LEVEL names it; see vector.h.
#include "vector_attend_time.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

// The gradients of weight and bias from a tile: of a cosine it is the sum over heads of coefficient * grad + slant * query.
template <class E>
void add_times(const EventWork<E>& w, int64_t count) {
    using V = typename EventWork<E>::V;
    for (int64_t j = 0; j < w.time_stride; j += V::kLanes) {
        V by_weight = V::load(w.to_weight + j), by_bias = V::load(w.to_bias + j);
        for (int64_t k = 0; k < count; ++k) {
            V cosine{};
            for (int64_t h = 0; h < w.heads; ++h) {
                const int64_t at = h * w.stride + w.before + j;
                cosine += V::all(w.score[h * kEvents + k]) * V::load(w.grad + at);
                cosine += V::all(w.slant[h * kEvents + k]) * V::load(w.query + at);
            }
            const V angle = cosine * V::load(w.sines + k * w.time_stride + j);  // its sign is turned at the end
            by_bias += angle;
            by_weight += angle * V::all(w.dt[k]);
        }
        by_weight.store(w.to_weight + j);
        by_bias.store(w.to_bias + j);
    }
}

template <class E>
bool row_gradient(const TimeAttention& in, int64_t first, int64_t last, char* scratch, double* time) {
    using S = typename E::Sum;
    using V = Wide<S, 64>;
    constexpr int64_t L = V::kLanes;
    EventWork<E> w(in, scratch);
    const S slope = static_cast<S>(in.slope);
    for (int64_t v = first; v < last; ++v) {
        int64_t begin, end;
        if (!w.span(v, begin, end)) return false;
        w.clear(w.sum);
        if (begin < end) {
            w.load(in.query, v, w.query);
            w.load(in.grad, v, w.grad);
            w.load(in.out, v, w.out);
        }
        for (int64_t h = 0; h < w.heads && begin < end; ++h) {
            V sum{};
            for (int64_t j = 0; j < w.stride; j += L) sum += V::load(w.grad + h * w.stride + j) * V::load(w.out + h * w.stride + j);
            w.delta[h] = lane_sum(sum);
        }
        for (int64_t j = 0; j < w.time_stride; ++j) w.to_weight[j] = w.to_bias[j] = 0;
        const S *peak = static_cast<const S*>(in.peak) + 2 * v * w.heads, *scale = peak + w.heads;
        for (int64_t at = begin; at < end; at += kEvents) {
            const int64_t count = end - at < kEvents ? end - at : kEvents;
            if (!(time ? w.template fill<true>(at, count) : w.template fill<false>(at, count))) return false;
            w.dots(w.grad, count, w.slant);
            if (in.dropped) w.draw(at, count);
            const S* scores = static_cast<const S*>(in.score) + at * w.heads;
            S* coefficients = static_cast<S*>(in.coefficient) + at * 2 * w.heads;
            for (int64_t h = 0; h < w.heads; ++h) {
                S *share = w.score + h * kEvents, *slant = w.slant + h * kEvents;
                for (int64_t k = 0; k < count; ++k) share[k] = scores[k * w.heads + h] - peak[h];
                for (int64_t k = count; k < EventWork<E>::padded(count); ++k) share[k] = slant[k] = 0;
                for (int64_t k = 0; k < count; k += L) (exponential(V::load(share + k)) * V::all(scale[h])).store(share + k);
                for (int64_t k = 0; k < count; ++k) {
                    const S keep = in.dropped ? w.keep[h * kEvents + k] : S{1};
                    // The slope is above 0: a score has the sign of what leaky relu was taken of.
                    slant[k] = share[k] * (keep * slant[k] - w.delta[h]) * leaky_rise(scores[k * w.heads + h], slope);
                    share[k] *= keep;
                    coefficients[2 * k * w.heads + h] = share[k];
                    coefficients[(2 * k + 1) * w.heads + h] = slant[k];
                }
            }
            w.add(w.slant, count, w.sum);
            if (time) add_times(w, count);
        }
        w.store(w.sum, v, in.grad_query);
        for (int64_t j = 0; time && j < in.times; ++j) {
            time[j] -= static_cast<double>(w.to_weight[j]);
            time[in.times + j] -= static_cast<double>(w.to_bias[j]);
        }
    }
    return true;
}

template <class E>
bool column_gradient(const TimeAttention& in, int64_t first, int64_t last) {
    using S = typename E::Sum;
    using V = Wide<S, 64>;
    constexpr int64_t L = V::kLanes;
    const int64_t heads = in.heads, width = in.width(), channels = in.channels;
    // Rows of grad and query go on behind the columns of x: a last vector may read of that, where it is long enough.
    const int64_t whole = (channels + L - 1) / L * L <= width ? (channels + L - 1) / L * L : channels / L * L;
    const S *grad = static_cast<const S*>(in.grad), *query = static_cast<const S*>(in.query);
    for (int64_t u = first; u < last; ++u) {
        const int64_t begin = in.t_indptr[u], end = in.t_indptr[u + 1];
        if (begin < 0 || begin > end || end > in.count) return false;
        S* to = static_cast<S*>(in.grad_x) + u * channels;
        for (int64_t e = begin; e < end; ++e)
            if (static_cast<uint64_t>(in.t_indices[e]) >= static_cast<uint64_t>(in.rows) ||
                static_cast<uint64_t>(in.t_position[e]) >= static_cast<uint64_t>(in.count))
                return false;
        int64_t j = 0;
        const auto together = [&]<int N>(Constant<N>) {
            V sums[N]{};
            for (int64_t e = begin; e < end; ++e) {
                const S* by = static_cast<const S*>(in.coefficient) + in.t_position[e] * 2 * heads;
                for (int64_t h = 0; h < heads; ++h) {
                    const int64_t at = (h * in.rows + in.t_indices[e]) * width + j;
                    const V share = V::all(by[h]), slant = V::all(by[heads + h]);
                    for (int i = 0; i < N; ++i)
                        sums[i] += share * V::load(grad + at + i * L) + slant * V::load(query + at + i * L);
                }
            }
            for (int i = 0; i < N; ++i) {
                S numbers[L];
                sums[i].store(numbers);
                const int64_t left = channels - j - i * L;
                __builtin_memcpy(to + j + i * L, numbers, static_cast<size_t>(left < L ? left : L) * sizeof(S));
            }
            j += N * L;
        };
        while (j + 8 * L <= whole) together(Constant<8>{});
        while (j + 4 * L <= whole) together(Constant<4>{});
        while (j < whole) together(Constant<1>{});
        for (; j < channels; ++j) {
            S sum = 0;
            for (int64_t e = begin; e < end; ++e) {
                const S* by = static_cast<const S*>(in.coefficient) + in.t_position[e] * 2 * heads;
                for (int64_t h = 0; h < heads; ++h) {
                    const int64_t at = (h * in.rows + in.t_indices[e]) * width + j;
                    sum += by[h] * grad[at] + by[heads + h] * query[at];
                }
            }
            to[j] = sum;
        }
    }
    return true;
}

}  // namespace

bool attend_time_row_gradient(const TimeAttention& in, int64_t begin, int64_t end, char* scratch, double* time) {
    return with_real(in.element, [&]<class E>(E) { return row_gradient<E>(in, begin, end, scratch, time); });
}

bool attend_time_column_gradient(const TimeAttention& in, int64_t begin, int64_t end, char*) {
    return with_real(in.element, [&]<class E>(E) { return column_gradient<E>(in, begin, end); });
}

}  // namespace headrace::HEADRACE_LEVEL
