// The gates of a GRU. Compiled once per instruction set: HEADRACE_LEVEL names it; see vector.h.
#include "vector_softmax.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

// Numerators and denominators of the Taylor series of tanh(x) / x in x^2: to the last bit up to |x| = 1/4.
constexpr double kTanh[] = {1.0,
                            -1.0 / 3,
                            2.0 / 15,
                            -17.0 / 315,
                            62.0 / 2835,
                            -1382.0 / 155925,
                            21844.0 / 6081075,
                            -929569.0 / 638512875,
                            6404582.0 / 10854718875,
                            -443861162.0 / 1856156927625,
                            18888466084.0 / 194896477400625};

template <class S>
HEADRACE_INLINE Wide<S, 64> minus_magnitude(Wide<S, 64> v) {
    return each([](auto x) { return x > 0 ? -x : x; }, v);
}

template <class S>
HEADRACE_INLINE Wide<S, 64> sigmoid(Wide<S, 64> v) {
    const auto power = exponential(minus_magnitude(v));
    return each([](auto x, auto p) { return (x > 0 ? p * 0 + S{1} : p) / (p + S{1}); }, v, power);
}

template <class S>
HEADRACE_INLINE Wide<S, 64> hyperbolic(Wide<S, 64> v) {
    const auto below = minus_magnitude(v);
    const auto power = exponential(below + below);
    return each([](auto x, auto p) {
        const auto z = x * x;
        auto series = z * static_cast<S>(kTanh[10]) + static_cast<S>(kTanh[9]);
        for (int i = 8; i >= 0; --i) series = series * z + static_cast<S>(kTanh[i]);
        const auto far = (S{1} - p) / (S{1} + p);
        return z < S{0.0625} ? x * series : (x > 0 ? far : -far);
    }, v, power);
}

// Calls body(offset in a row of `width` numbers, load, store) for each vector of a row; at its end they are cut short.
template <class S, class Body>
HEADRACE_INLINE void for_row(int64_t width, Body body) {
    using V = Wide<S, 64>;
    constexpr int64_t L = V::kLanes;
    int64_t j = 0;
    for (; j + L <= width; j += L)
        body(j, [](const S* p) { return V::load(p); }, [](S* p, V v) { v.store(p); });
    if (j == width) return;
    const size_t bytes = static_cast<size_t>(width - j) * sizeof(S);
    body(j, [bytes](const S* p) {
        S numbers[L] = {};
        __builtin_memcpy(numbers, p, bytes);
        return V::load(numbers);
    }, [bytes](S* p, V v) {
        S numbers[L];
        v.store(numbers);
        __builtin_memcpy(p, numbers, bytes);
    });
}

template <class S>
void forward(const GruRows& in, int64_t begin, int64_t end) {
    const int64_t d = in.width;
    for (int64_t v = begin; v < end; ++v) {
        const S *input = static_cast<const S*>(in.input) + v * 3 * d, *hidden = static_cast<const S*>(in.hidden) + v * 3 * d;
        const S* memory = static_cast<const S*>(in.memory) + v * d;
        S *gates = static_cast<S*>(in.gates) + v * 3 * d, *out = static_cast<S*>(in.out) + v * d;
        for_row<S>(d, [&](int64_t j, auto load, auto store) {
            const auto reset = sigmoid(load(input + j) + load(hidden + j));
            const auto update = sigmoid(load(input + d + j) + load(hidden + d + j));
            const auto fresh = hyperbolic(load(input + 2 * d + j) + reset * load(hidden + 2 * d + j));
            store(gates + j, reset);
            store(gates + d + j, update);
            store(gates + 2 * d + j, fresh);
            store(out + j, fresh + update * (load(memory + j) - fresh));
        });
    }
}

template <class S>
void backward(const GruRows& in, int64_t begin, int64_t end) {
    using V = Wide<S, 64>;
    const int64_t d = in.width;
    for (int64_t v = begin; v < end; ++v) {
        const S *hidden = static_cast<const S*>(in.hidden) + v * 3 * d, *gates = static_cast<const S*>(in.gates) + v * 3 * d;
        const S *memory = static_cast<const S*>(in.memory) + v * d, *grad = static_cast<const S*>(in.grad) + v * d;
        S *to_input = static_cast<S*>(in.grad_input) + v * 3 * d, *to_hidden = static_cast<S*>(in.grad_hidden) + v * 3 * d;
        S* to_memory = in.grad_memory ? static_cast<S*>(in.grad_memory) + v * d : nullptr;
        for_row<S>(d, [&](int64_t j, auto load, auto store) {
            const V one = V::all(1), reset = load(gates + j), update = load(gates + d + j), fresh = load(gates + 2 * d + j);
            const V g = load(grad + j), to_fresh = g * (one - update) * (one - fresh * fresh);
            const V to_update = g * (load(memory + j) - fresh) * update * (one - update);
            const V to_reset = to_fresh * load(hidden + 2 * d + j) * reset * (one - reset);
            store(to_input + j, to_reset);
            store(to_input + d + j, to_update);
            store(to_input + 2 * d + j, to_fresh);
            store(to_hidden + j, to_reset);
            store(to_hidden + d + j, to_update);
            store(to_hidden + 2 * d + j, to_fresh * reset);
            if (to_memory) store(to_memory + j, g * update);
        });
    }
}

}  // namespace

void gru(const GruRows& in, int64_t begin, int64_t end) {
    in.element == Element::f64 ? forward<double>(in, begin, end) : forward<float>(in, begin, end);
}
void gru_gradient(const GruRows& in, int64_t begin, int64_t end) {
    in.element == Element::f64 ? backward<double>(in, begin, end) : backward<float>(in, begin, end);
}

}  // namespace headrace::HEADRACE_LEVEL
