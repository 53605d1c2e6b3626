// Dropout. Compiled once per instruction set: HEADRACE_LEVEL names it; see vector.h.
#include "vector_elements.h"
#include "vector_philox.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

constexpr int kGroup = 64;  // elements of eight blocks: four words a block, two elements a word

inline void draw_group(PhiloxKey key, int64_t group, uint16_t* draws) {
    Counters counters;
    uint32_t words[kGroup / 2];
    for (int i = 0; i < 8; ++i) {
        const uint64_t block = static_cast<uint64_t>(group) * 8 + static_cast<uint64_t>(i);
        counters.first[i] = block & 0xFFFFFFFFu;
        counters.second[i] = block >> 32;
        counters.third[i] = 0;
    }
    philox8(key, 0, counters, words);
    __builtin_memcpy(draws, words, sizeof words);
}

// Elements [begin, begin + count) of the group's 64, one at a time.
template <class E>
void each(const DropoutJob& job, const uint16_t* draws, int64_t begin, int count) {
    using T = typename E::Type;
    using S = typename E::Sum;
    for (int i = 0; i < count; ++i) {
        S value = E::get(static_cast<const T*>(job.x) + begin + i);
        if (job.relu && value < S{0}) value = S{0};
        E::put(static_cast<T*>(job.out) + begin + i, draws[i] < job.dropped ? S{0} : value * static_cast<S>(job.scale));
    }
}

template <class E>
void run(const DropoutJob& job, int64_t begin, int64_t end) {
    using T = typename E::Type;
    uint16_t draws[kGroup] = {};
    for (int64_t at = begin; at < end; at += kGroup) {
        if (job.dropped) draw_group(job.key, at / kGroup, draws);
        const int count = end - at < kGroup ? static_cast<int>(end - at) : kGroup;
        if constexpr (sizeof(typename E::Sum) == 4) {
            if (count == kGroup) {
                const Floats scale = Floats{} + static_cast<float>(job.scale);
                for (int v = 0; v < kGroup; v += 16) {
                    Floats value = E::load(static_cast<const T*>(job.x) + at + v);
                    if (job.relu) value = value < 0.0f ? Floats{} : value;  // a NaN stays
                    const Words drawn = __builtin_convertvector(load_as<Halves>(draws + v), Words);
                    E::store(static_cast<T*>(job.out) + at + v, drawn < job.dropped ? Floats{} : value * scale);
                }
                continue;
            }
        }
        each<E>(job, draws, at, count);
    }
}

// The gradient of relu and dropout together: what was let through is what came out above zero.
template <class E>
void run_gated(const DropoutJob& job, const void* gate, int64_t begin, int64_t end) {
    using T = typename E::Type;
    using S = typename E::Sum;
    const T *x = static_cast<const T*>(job.x), *open = static_cast<const T*>(gate);
    T* out = static_cast<T*>(job.out);
    int64_t at = begin;
    if constexpr (sizeof(S) == 4) {
        const Floats scale = Floats{} + static_cast<float>(job.scale);
        for (; at + 16 <= end; at += 16) E::store(out + at, E::load(open + at) > 0.0f ? E::load(x + at) * scale : Floats{});
    }
    for (; at < end; ++at) E::put(out + at, E::get(open + at) > S{0} ? E::get(x + at) * static_cast<S>(job.scale) : S{0});
}

}  // namespace

void dropout(Element element, const DropoutJob& job, const void* gate, int64_t begin, int64_t end) {
    with_element(element, [&]<class E>(E) {
        gate ? run_gated<E>(job, gate, begin, end) : run<E>(job, begin, end);
    });
}

}  // namespace headrace::HEADRACE_LEVEL
