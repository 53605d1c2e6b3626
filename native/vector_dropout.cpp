// Dropout. Compiled once per instruction set: HEADRACE_LEVEL names it; see vector.h.
#include "vector_elements.h"
#include "vector_philox.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

constexpr int kGroup = 64;  // elements of eight blocks: four words a block, two elements a word

// The draws of eight blocks, from the one of the element at `position` on, which is a multiple of eight.
inline void draw_group(PhiloxKey key, int64_t position, uint16_t* draws) {
    Counters counters;
    uint32_t words[kGroup / 2];
    for (int i = 0; i < 8; ++i) {
        const uint64_t block = static_cast<uint64_t>(position) / 8 + static_cast<uint64_t>(i);
        counters.first[i] = block & 0xFFFFFFFFu;
        counters.second[i] = block >> 32;
        counters.third[i] = 0;
    }
    philox8(key, 0, counters, words);
    __builtin_memcpy(draws, words, sizeof words);
}

// Sixteen elements from `begin` on.
template <class E>
__attribute__((always_inline)) inline void sixteen(const DropoutJob& job, const uint16_t* draws, int64_t begin) {
    using T = typename E::Type;
    Floats value = E::load(static_cast<const T*>(job.x) + begin);
    if (job.relu) value = value < 0.0f ? Floats{} : value;  // a NaN stays
    const Words drawn = __builtin_convertvector(load_as<Halves>(draws), Words);
    const Floats scale = Floats{} + static_cast<float>(job.scale);
    E::store(static_cast<T*>(job.out) + begin, drawn < job.dropped ? Floats{} : value * scale);
}

// Elements [begin, begin + count), one at a time.
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
    uint16_t draws[kGroup] = {};
    for (int64_t at = begin; at < end; at += kGroup) {
        if (job.dropped) draw_group(job.key, at, draws);
        const int count = end - at < kGroup ? static_cast<int>(end - at) : kGroup;
        if constexpr (sizeof(typename E::Sum) == 4) {
            if (count == kGroup) {
                for (int v = 0; v < kGroup; v += 16) sixteen<E>(job, draws + v, at + v);
                continue;
            }
        }
        each<E>(job, draws, at, count);
    }
}

// The draws of a slice's elements [next, end), one after the other. A row is a run of positions that may begin and end inside
// a block: of each block the lanes that the row has are taken.
struct SliceDraws {
    const DropoutJob& job;
    int64_t next, end, row, column;

    SliceDraws(const DropoutJob& job_, int64_t begin, int64_t end_)
        : job(job_), next(begin), end(end_), row(begin / job.slice.width), column(begin % job.slice.width) {}

    int64_t position() const {
        const Slice& slice = job.slice;
        return slice.first + slice.stride * (slice.rows ? slice.rows[row] : row) + column;
    }
    int64_t left_in_row() const {
        const int64_t left = job.slice.width - column;
        return end - next < left ? end - next : left;
    }
    void pass(int64_t count) {
        next += count;
        column += count;
        if (column == job.slice.width) column = 0, ++row;
    }
    // Writes the draws of the next elements, of eight blocks or fewer at the end, and returns how many: up to kGroup. Eight
    // numbers behind them are written too.
    int take(uint16_t* draws) {
        if (left_in_row() >= kGroup && position() % 8 == 0) {
            draw_group(job.key, position(), draws);
            pass(kGroup);
            return kGroup;
        }
        Counters counters{};
        uint32_t words[kGroup / 2 + 4] = {};  // lanes are copied eight at a time, also those behind the last block
        int64_t lane[8], lanes[8];
        int blocks = 0, taken = 0;
        for (; blocks < 8 && next < end; ++blocks) {
            const uint64_t at = static_cast<uint64_t>(position());
            const int64_t left = left_in_row();
            lane[blocks] = static_cast<int64_t>(at % 8);
            lanes[blocks] = left < 8 - lane[blocks] ? left : 8 - lane[blocks];
            counters.first[blocks] = at / 8 & 0xFFFFFFFFu;
            counters.second[blocks] = at / 8 >> 32;
            pass(lanes[blocks]);
        }
        philox8(job.key, 0, counters, words);
        for (int i = 0; i < blocks; ++i) {
            __builtin_memcpy(draws + taken, reinterpret_cast<const char*>(words) + 2 * (8 * i + lane[i]), 16);
            taken += static_cast<int>(lanes[i]);
        }
        return taken;
    }
};

template <class E>
void run_slice(const DropoutJob& job, int64_t begin, int64_t end) {
    constexpr bool vectors = sizeof(typename E::Sum) == 4;
    uint16_t draws[kGroup + 32] = {};
    int held = 0;  // draws of elements from `at` on: fewer than 16 wait for the next
    SliceDraws from(job, begin, end);
    for (int64_t at = begin; from.next < end;) {
        held += from.take(draws + held);
        int done = 0;
        if constexpr (vectors)
            for (; done + 16 <= held; done += 16) sixteen<E>(job, draws + done, at + done);
        if (!vectors || from.next == end) {
            each<E>(job, draws + done, at + done, held - done);
            done = held;
        }
        at += done;
        held -= done;
        if (done && held) __builtin_memcpy(draws, draws + done, 32);  // fewer than 16, from 16 or more behind
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
        gate ? run_gated<E>(job, gate, begin, end) : job.slice.width ? run_slice<E>(job, begin, end) : run<E>(job, begin, end);
    });
}

}  // namespace headrace::HEADRACE_LEVEL
