// The largest of neighbors' rows, column by column, and its gradient. Compiled once per instruction set: HEADRACE_LEVEL names it;
// see vector.h.
#include "vector_lookup.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

constexpr int kMaxTile = kTile / 2;  // twice the registers of a sum: the largest so far, and where it stands

// N vectors of a row's columns, from `column` on. The last one is moved back as in a sum.
template <class E, Kind kind, int N>
HEADRACE_INLINE void max_columns(Lookup<E, kind>& lookup, int64_t begin, int64_t end, int64_t column, int64_t last, bool request,
                                 typename E::Sum factor, typename E::Type* out, int32_t* where) {
    using S = typename E::Sum;
    using V = Wide<S, 64>;
    using Part = typename V::Part;
    typedef typename IntegerLike<S>::Type Slots __attribute__((vector_size(V::kPart)));
    constexpr int L = V::kLanes;
    const int64_t tail = column + (N - 1) * L < last ? column + (N - 1) * L : last;
    const auto at = [&](int v) { return v < N - 1 ? column + v * L : tail; };
    V best[N];
    Slots slot[N][V::kParts];
    for (int v = 0; v < N; ++v) {
        best[v] = V::all(begin < end ? -__builtin_inff() : 0);  // the first is not below it, and stands at 0
        for (auto& part : slot[v]) part = Slots{} - (begin == end);
    }
    for (int64_t e = begin; e < end; ++e) {
        if (request) lookup.request(e + kAhead, lookup.bytes);
        const typename E::Type* row = lookup.row(e);
        const S c = kind == Kind::weighted ? lookup.coefficient(e) : S{1};
        const Slots now = Slots{} + static_cast<typename IntegerLike<S>::Type>(e - begin);
        for (int v = 0; v < N; ++v) {
            const V values = load_lanes<E, V>(row + at(v));
            for (int i = 0; i < V::kParts; ++i) {
                const Part value = kind == Kind::weighted ? values.part[i] * c : values.part[i], most = best[v].part[i];
                const auto better = ~(value <= most) & (most == most);  // a NaN wins and stays, as in torch
                best[v].part[i] = better ? value : most;
                slot[v][i] = better ? now : slot[v][i];
            }
        }
    }
    for (int v = 0; v < N; ++v) {
        store_lanes<E>(out + at(v), each([factor](auto x) { return x * factor; }, best[v]));
        for (int i = 0; i < V::kParts; ++i) {
            typedef int32_t Narrow __attribute__((vector_size(V::kPartLanes * 4)));
            store_as(where + at(v) + i * V::kPartLanes, __builtin_convertvector(slot[v][i], Narrow));
        }
    }
}

// Fewer columns than a vector has lanes.
template <class E, Kind kind>
HEADRACE_INLINE void max_thin(Lookup<E, kind>& lookup, int64_t begin, int64_t end, typename E::Sum factor, typename E::Type* out,
                              int32_t* where) {
    using S = typename E::Sum;
    S best[64 / sizeof(S)];
    const int64_t width = lookup.in.width;
    for (int64_t j = 0; j < width; ++j) best[j] = begin < end ? -__builtin_inff() : 0, where[j] = begin < end ? 0 : -1;
    for (int64_t e = begin; e < end; ++e) {
        lookup.request(e + kAhead, lookup.bytes);
        const typename E::Type* row = lookup.row(e);
        const S c = kind == Kind::weighted ? lookup.coefficient(e) : S{1};
        for (int64_t j = 0; j < width; ++j) {
            const S value = E::get(row + j) * c;
            const bool better = !(value <= best[j]) && best[j] == best[j];
            best[j] = better ? value : best[j];
            where[j] = better ? static_cast<int32_t>(e - begin) : where[j];
        }
    }
    for (int64_t j = 0; j < width; ++j) E::put(out + j, best[j] * factor);
}

template <class E, Kind kind>
bool max_of(const Entries& in, const RowsOut& to, int64_t begin, int64_t end, int32_t* where) {
    using S = typename E::Sum;
    constexpr int L = 64 / sizeof(S);
    Lookup<E, kind> lookup(in);
    for (int64_t v = begin; v < end; ++v) {
        int64_t first, past, column = 0;
        if (!lookup.range(v, first, past)) return false;
        auto* out = reinterpret_cast<typename E::Type*>(to.out + v * to.stride);
        int32_t* row_where = where + v * in.width;
        const S factor = row_factor<S>(to, v, past - first);
        const auto pass = [&]<int N>(Constant<N>) {
            max_columns<E, kind, N>(lookup, first, past, column, in.width - L, column == 0, factor, out, row_where);
            column += N * L;
        };
        if (in.width < L) {
            max_thin<E, kind>(lookup, first, past, factor, out, row_where);
        } else {
            while (column + kMaxTile * L <= in.width) pass(Constant<kMaxTile>{});
            if (kMaxTile > 2 && column + 2 * L <= in.width) pass(Constant<2>{});
            while (column < in.width) pass(Constant<1>{});
        }
        if (!lookup.ok) return false;
    }
    return true;
}

}  // namespace

bool max(const Entries& in, const RowsOut& to, int64_t begin, int64_t end, int32_t* where) {
    bool ok = true;
    with_element(in.element, [&]<class E>(E) {
        with_kind(in, [&]<Kind kind>(KindIs<kind>) { ok = max_of<E, kind>(in, to, begin, end, where); });
    });
    return ok;
}

void max_gradient(Element element, const RowTile& tile, const int32_t* const* where, const int32_t* slots, void* accumulator) {
    with_element(element, [&]<class E>(E) {
        using S = typename E::Sum;
        using T = typename E::Type;
        auto* sum = static_cast<S*>(accumulator);
        const int64_t bytes = tile.width * static_cast<int64_t>(sizeof(T)), known = tile.count + tile.ahead;
        for (int64_t i = 0; i < tile.count; ++i) {
            if (i + kAhead < known) prefetch_row(tile.rows[i + kAhead], bytes);
            const T* row = static_cast<const T*>(tile.rows[i]);
            const S c = tile.coefficients ? static_cast<const S*>(tile.coefficients)[i] : S{1};
            for (int64_t j = 0; j < tile.width; ++j)
                sum[j] += where[i][j] == slots[i] ? E::get(row + j) * c : S{0};
        }
    });
}

}  // namespace headrace::HEADRACE_LEVEL
