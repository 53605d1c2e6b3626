// Sums of neighbors' rows. Compiled once per instruction set: HEADRACE_LEVEL names it; see vector.h.
#include "vector_lookup.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

constexpr int64_t kStreamed = int64_t{64} << 20;  // bytes of output

// Sums on their way out. A large output does not stay in the caches, and streaming it saves reading its lines first: whole lines
// alone, or halves of one that follow each other.
template <class E>
struct Sink {
    using T = typename E::Type;
    const RowsOut& to;
    const bool streaming;

    Sink(const RowsOut& rows_out, const Entries& in)
        : to(rows_out),
          streaming(in.width * static_cast<int64_t>(sizeof(T)) % 64 == 0 && to.stride % 64 == 0 &&
                    reinterpret_cast<uintptr_t>(to.out) % 64 == 0 && in.rows * to.stride >= kStreamed) {}
    ~Sink() {
#if defined(__x86_64__)
        if (streaming) _mm_sfence();
#endif
    }
    T* row(int64_t v) const { return reinterpret_cast<T*>(to.out + v * to.stride); }
};

// N vectors of a row's columns, from `column` on, summed in registers. The last one is moved back to `last` where it would pass
// the end of the row: it then repeats some columns of the one before, with the same values.
template <class E, Kind kind, int N>
HEADRACE_INLINE void sum_columns(Lookup<E, kind>& lookup, int64_t begin, int64_t end, int64_t column, int64_t last,
                                 int64_t requested, typename E::Sum factor, const Sink<E>& sink, typename E::Type* out) {
    using S = typename E::Sum;
    using V = Wide<S, 64>;
    constexpr int L = V::kLanes;
    const int64_t tail = column + (N - 1) * L < last ? column + (N - 1) * L : last;
    const auto at = [&](int v) { return v < N - 1 ? column + v * L : tail; };
    V sum[N];
    for (int v = 0; v < N; ++v) sum[v] = V{};
    for (int64_t e = begin; e < end; ++e) {
        if (requested) lookup.request(e + kAhead, requested);
        const typename E::Type* row = lookup.row(e);
        if constexpr (kind == Kind::weighted) {
            const S c = lookup.coefficient(e);
            for (int v = 0; v < N; ++v)
                sum[v] += each([c](auto x) { return x * c; }, load_lanes<E, V>(row + at(v)));
        } else {
            for (int v = 0; v < N; ++v) sum[v] += load_lanes<E, V>(row + at(v));
        }
    }
    for (int v = 0; v < N; ++v) {
        const V scaled = each([factor](auto x) { return x * factor; }, sum[v]);
        sink.streaming ? stream_lanes<E>(out + at(v), scaled) : store_lanes<E>(out + at(v), scaled);
    }
}

template <class E, Kind kind, int N>
bool sum_narrow(const Entries& in, const RowsOut& to, int64_t begin, int64_t end) {  // one tile a row
    using S = typename E::Sum;
    constexpr int L = 64 / sizeof(S);
    Lookup<E, kind> lookup(in);
    const Sink<E> sink(to, in);
    for (int64_t v = begin; v < end; ++v) {
        int64_t first, past;
        if (!lookup.range(v, first, past)) return false;
        // A request of a known length: a loop without its counter.
        constexpr int64_t requested = N * L * static_cast<int64_t>(sizeof(typename E::Type));
        sum_columns<E, kind, N>(lookup, first, past, 0, in.width - L, requested, row_factor<S>(to, v, past - first), sink,
                                sink.row(v));
        if (!lookup.ok) return false;
    }
    return true;
}

// Fewer columns than a vector has lanes.
template <class E, Kind kind>
bool sum_thin(const Entries& in, const RowsOut& to, int64_t begin, int64_t end) {
    using S = typename E::Sum;
    constexpr int L = 64 / sizeof(S);
    Lookup<E, kind> lookup(in);
    const Sink<E> sink(to, in);
    for (int64_t v = begin; v < end; ++v) {
        int64_t first, past;
        if (!lookup.range(v, first, past)) return false;
        S sum[L] = {};
        for (int64_t e = first; e < past; ++e) {
            lookup.request(e + kAhead, lookup.bytes);
            const typename E::Type* row = lookup.row(e);
            const S c = kind == Kind::weighted ? lookup.coefficient(e) : S{1};
            for (int64_t j = 0; j < in.width; ++j) sum[j] += kind == Kind::weighted ? E::get(row + j) * c : E::get(row + j);
        }
        const S factor = row_factor<S>(to, v, past - first);
        for (int64_t j = 0; j < in.width; ++j) E::put(sink.row(v) + j, sum[j] * factor);
        if (!lookup.ok) return false;
    }
    return true;
}

// Several passes over a row's entries. Their rows are requested in the first and lie in the cache after it.
template <class E, Kind kind>
bool sum_broad(const Entries& in, const RowsOut& to, int64_t begin, int64_t end) {
    using S = typename E::Sum;
    constexpr int L = 64 / sizeof(S);
    Lookup<E, kind> lookup(in);
    const Sink<E> sink(to, in);
    for (int64_t v = begin; v < end; ++v) {
        int64_t first, past, column = 0;
        if (!lookup.range(v, first, past)) return false;
        const S factor = row_factor<S>(to, v, past - first);
        const auto pass = [&]<int N>(Constant<N>) {
            const int64_t requested = column ? 0 : lookup.bytes;
            sum_columns<E, kind, N>(lookup, first, past, column, in.width - L, requested, factor, sink, sink.row(v));
            column += N * L;
        };
        while (column + kTile * L <= in.width) pass(Constant<kTile>{});
        if (kTile > 4 && column + 4 * L <= in.width) pass(Constant<4>{});
        if (kTile > 2 && column + 2 * L <= in.width) pass(Constant<2>{});
        while (column < in.width) pass(Constant<1>{});
        if (!lookup.ok) return false;
    }
    return true;
}

}  // namespace

bool sum(const Entries& in, const RowsOut& to, int64_t begin, int64_t end) {
    bool ok = true;
    with_element(in.element, [&]<class E>(E) {
        with_kind(in, [&]<Kind kind>(KindIs<kind>) {
            constexpr int64_t L = 64 / sizeof(typename E::Sum);
            const auto narrow = [&]<int N>(Constant<N>) { ok = sum_narrow<E, kind, N>(in, to, begin, end); };
            if (in.width < L) {
                ok = sum_thin<E, kind>(in, to, begin, end);
            } else {
                switch ((in.width + L - 1) / L) {
                    case 1: return narrow(Constant<1>{});
                    case 2: return narrow(Constant<2>{});
                    case 3: return narrow(Constant<3>{});
                    case 4: return narrow(Constant<4>{});
#if defined(__AVX2__)
                    case 5: return narrow(Constant<5>{});
                    case 6: return narrow(Constant<6>{});
                    case 7: return narrow(Constant<7>{});
                    case 8: return narrow(Constant<8>{});
#endif
                }
                ok = sum_broad<E, kind>(in, to, begin, end);
            }
        });
    });
    return ok;
}

}  // namespace headrace::HEADRACE_LEVEL
