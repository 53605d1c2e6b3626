// Aggregating rows. Compiled once per instruction set: HEADRACE_LEVEL names it; see vector.h.
#include "vector_elements.h"

namespace headrace::HEADRACE_LEVEL {

void draw(PhiloxKey, uint32_t, bool, const DrawRow*, int64_t, int64_t*, int64_t*);  // vector_draw.cpp
void rank(PhiloxKey, uint32_t, const Ranking&, const DrawRow&, int64_t*, int64_t*);  // vector_rank.cpp
void dropout(Element, const DropoutJob&, const void*, int64_t, int64_t);            // vector_dropout.cpp
int64_t attend_scratch(const Attention&);                                           // vector_attend.cpp
bool attend(const Attention&, int64_t, int64_t, char*);
bool attend_row_gradient(const Attention&, int64_t, int64_t, char*, double*);
bool attend_column_gradient(const Attention&, int64_t, int64_t, char*);

namespace {

constexpr int kTile = 8;    // vectors of one row held in registers
constexpr int64_t kStreamed = int64_t{64} << 20;  // bytes of output

// The entries of an aggregation, looked up one at a time: addresses are checked before they are used. Plain: no
// coefficients, no ids, int32 indices, which is the common case and needs the fewest instructions.
enum class Kind { plain, unweighted, weighted };

template <class E, Kind kind>
struct Lookup {
    using S = typename E::Sum;
    using T = typename E::Type;
    const Entries in;
    const int64_t bytes;
    // A large output does not stay in the caches, and streaming it saves reading its lines first. Rows must be whole lines.
    const bool streaming;
    bool ok = true;

    Lookup(const Entries& entries, const void* out)
        : in(entries), bytes(in.width * static_cast<int64_t>(sizeof(T))),
          streaming(bytes % 64 == 0 && reinterpret_cast<uintptr_t>(out) % 64 == 0 && in.rows * bytes >= kStreamed) {}
    ~Lookup() {
#if defined(__x86_64__)
        if (streaming) _mm_sfence();
#endif
    }

    const T* row(int64_t e) {
        int64_t at = index(e);
        if (__builtin_expect(static_cast<uint64_t>(at) >= static_cast<uint64_t>(in.columns), 0)) at = fail();
        if (kind != Kind::plain && in.ids) {
            at = in.ids[at];
            if (__builtin_expect(static_cast<uint64_t>(at) >= static_cast<uint64_t>(in.x_rows), 0)) at = fail();
        }
        return reinterpret_cast<const T*>(in.x + at * in.x_stride);
    }
    S coefficient(int64_t e) {
        S c{1};
        if (in.weight) {
            int64_t at = in.position ? in.position[e] : e;
            if (__builtin_expect(static_cast<uint64_t>(at) >= static_cast<uint64_t>(in.count), 0)) at = fail();
            c = static_cast<const S*>(in.weight)[at];
        }
        if (in.scale) {
            int64_t at = in.indices[e];
            if (__builtin_expect(static_cast<uint64_t>(at) >= static_cast<uint64_t>(in.columns), 0)) at = fail();
            c *= static_cast<const S*>(in.scale)[at];
        }
        return c;
    }
    // Asks for `span` bytes of the row of entry e. A bad index is harmless here, but must not be followed.
    __attribute__((always_inline)) void request(int64_t e, int64_t span) const {
        if (e >= in.count) return;
        int64_t at = index(e);
        if (kind != Kind::plain && in.ids)
            at = static_cast<uint64_t>(at) < static_cast<uint64_t>(in.columns) ? in.ids[at] : 0;
        prefetch_row(in.x + at * in.x_stride, span);
        if constexpr (kind == Kind::weighted) {
            if (in.position) __builtin_prefetch(static_cast<const S*>(in.weight) + in.position[e], 0, 3);
            if (in.scale) __builtin_prefetch(static_cast<const S*>(in.scale) + at, 0, 3);
        }
    }
    int64_t index(int64_t e) const {
        return kind == Kind::plain ? static_cast<const int32_t*>(in.indices.data)[e] : in.indices[e];
    }
    int64_t fail() {
        ok = false;
        return 0;
    }
};

// N vectors of a row's columns, from `column` on, summed in registers. The last one is moved back so that it ends with the
// row: it then repeats some columns of the one before, with the same values.
template <class E, Kind kind, int N>
inline void sum_columns(Lookup<E, kind>& lookup, int64_t begin, int64_t end, int64_t column, int64_t last, bool request,
                        typename E::Sum scale, typename E::Type* out) {
    using S = typename E::Sum;
    constexpr int L = 64 / sizeof(S);
    // A row that fits one tile is requested by a loop of known length, others whole while their first tile is summed.
    const int64_t request_bytes = N < kTile ? N * L * static_cast<int64_t>(sizeof(typename E::Type)) : lookup.bytes;
    int64_t at[N];
    typename E::Vector sum[N];
    for (int v = 0; v < N; ++v) {
        at[v] = column + v * L < last ? column + v * L : last;
        sum[v] = typename E::Vector{};
    }
    for (int64_t e = begin; e < end; ++e) {
        if (request) lookup.request(e + kAhead, request_bytes);
        const typename E::Type* row = lookup.row(e);
        if constexpr (kind == Kind::weighted) {
            const S c = lookup.coefficient(e);
            for (int v = 0; v < N; ++v) sum[v] += E::load(row + at[v]) * c;
        } else {
            for (int v = 0; v < N; ++v) sum[v] += E::load(row + at[v]);
        }
    }
    if (lookup.streaming) {
        for (int v = 0; v < N; ++v) E::stream(out + at[v], sum[v] * scale);
    } else {
        for (int v = 0; v < N; ++v) E::store(out + at[v], sum[v] * scale);
    }
}

template <class E, Kind kind, int N>
bool sum_narrow(const Entries& in, int64_t begin, int64_t end, bool mean, typename E::Type* out) {  // one tile a row
    using S = typename E::Sum;
    Lookup<E, kind> lookup(in, out);
    const int64_t last = in.width - 64 / static_cast<int64_t>(sizeof(S));
    for (int64_t v = begin; v < end; ++v) {
        const int64_t from = in.indptr[v], to = in.indptr[v + 1];
        if (from < 0 || to < from || to > in.count) return false;
        const S scale = mean && to > from ? S{1} / static_cast<S>(to - from) : S{1};
        sum_columns<E, kind, N>(lookup, from, to, 0, last, true, scale, out + v * in.width);
        if (!lookup.ok) return false;
    }
    return true;
}

template <class E, Kind kind>
bool sum_any(const Entries& in, int64_t begin, int64_t end, bool mean, typename E::Type* out) {
    using S = typename E::Sum;
    constexpr int L = 64 / sizeof(S);
    const int64_t d = in.width, vectors = (d + L - 1) / L, last = d - L;
    if (d >= L) switch (vectors) {
            case 1: return sum_narrow<E, kind, 1>(in, begin, end, mean, out);
            case 2: return sum_narrow<E, kind, 2>(in, begin, end, mean, out);
            case 3: return sum_narrow<E, kind, 3>(in, begin, end, mean, out);
            case 4: return sum_narrow<E, kind, 4>(in, begin, end, mean, out);
            case 5: return sum_narrow<E, kind, 5>(in, begin, end, mean, out);
            case 6: return sum_narrow<E, kind, 6>(in, begin, end, mean, out);
            case 7: return sum_narrow<E, kind, 7>(in, begin, end, mean, out);
            case 8: return sum_narrow<E, kind, 8>(in, begin, end, mean, out);
        }
    Lookup<E, kind> lookup(in, out);
    for (int64_t v = begin; v < end; ++v) {
        const int64_t from = in.indptr[v], to = in.indptr[v + 1];
        if (from < 0 || to < from || to > in.count) return false;
        const S scale = mean && to > from ? S{1} / static_cast<S>(to - from) : S{1};
        typename E::Type* row_out = out + v * d;
        if (d < L) {
            S sum[L] = {};
            for (int64_t e = from; e < to; ++e) {
                lookup.request(e + kAhead, lookup.bytes);
                const typename E::Type* row = lookup.row(e);
                const S c = kind == Kind::weighted ? lookup.coefficient(e) : S{1};
                for (int64_t j = 0; j < d; ++j) sum[j] += kind == Kind::weighted ? E::get(row + j) * c : E::get(row + j);
            }
            for (int64_t j = 0; j < d; ++j) E::put(row_out + j, sum[j] * scale);
        } else {
            // Several passes over the row's entries. Rows were requested in the first and lie in the cache after it.
            int64_t column = 0;
            for (; column + kTile * L <= d; column += kTile * L)
                sum_columns<E, kind, kTile>(lookup, from, to, column, last, column == 0, scale, row_out);
            for (; column + 2 * L < d; column += 2 * L)
                sum_columns<E, kind, 2>(lookup, from, to, column, last, false, scale, row_out);
            if (column < d) sum_columns<E, kind, 2>(lookup, from, to, column, last, false, scale, row_out);
        }
        if (!lookup.ok) return false;
    }
    return true;
}

bool sum(const Entries& in, int64_t begin, int64_t end, bool mean, char* out) {
    bool ok = true;
    with_element(in.element, [&]<class E>(E) {
        auto* to = reinterpret_cast<typename E::Type*>(out);
        ok = in.weight || in.scale              ? sum_any<E, Kind::weighted>(in, begin, end, mean, to)
             : !in.ids && !in.indices.wide ? sum_any<E, Kind::plain>(in, begin, end, mean, to)
                                           : sum_any<E, Kind::unweighted>(in, begin, end, mean, to);
    });
    return ok;
}

void max(Element element, const RowTile& tile, void* accumulator, int32_t* where) {
    with_element(element, [&]<class E>(E) {
        using S = typename E::Sum;
        using T = typename E::Type;
        auto* best = static_cast<S*>(accumulator);
        const int64_t bytes = tile.width * static_cast<int64_t>(sizeof(T)), known = tile.count + tile.ahead;
        for (int64_t i = 0; i < tile.count; ++i) {
            if (i + kAhead < known) prefetch_row(tile.rows[i + kAhead], bytes);
            const T* row = static_cast<const T*>(tile.rows[i]);
            const S c = tile.coefficients ? static_cast<const S*>(tile.coefficients)[i] : S{1};
            const int32_t slot = static_cast<int32_t>(tile.first + i);
            for (int64_t j = 0; j < tile.width; ++j) {
                const S value = E::get(row + j) * c;
                // A NaN wins and stays, as in torch.
                const bool better = slot == 0 || value > best[j] || (value != value && best[j] == best[j]);
                best[j] = better ? value : best[j];
                where[j] = better ? slot : where[j];
            }
        }
    });
}

void max_gradient(Element element, const RowTile& tile, const int32_t* const* where, const int32_t* slots,
                  void* accumulator) {
    with_element(element, [&]<class E>(E) {
        using S = typename E::Sum;
        using T = typename E::Type;
        auto* sum = static_cast<S*>(accumulator);
        for (int64_t i = 0; i < tile.count; ++i) {
            const T* row = static_cast<const T*>(tile.rows[i]);
            const S c = tile.coefficients ? static_cast<const S*>(tile.coefficients)[i] : S{1};
            for (int64_t j = 0; j < tile.width; ++j)
                sum[j] += where[i][j] == slots[i] ? E::get(row + j) * c : S{0};
        }
    });
}

void dot(Element element, const RowTile& tile, const void* with, const int32_t* where, void* dots) {
    with_element(element, [&]<class E>(E) {
        using S = typename E::Sum;
        using T = typename E::Type;
        constexpr int L = 64 / sizeof(S);
        const T* other = static_cast<const T*>(with);
        const int64_t bytes = tile.width * static_cast<int64_t>(sizeof(T)), known = tile.count + tile.ahead;
        for (int64_t i = 0; i < tile.count; ++i) {
            if (i + kAhead < known) prefetch_row(tile.rows[i + kAhead], bytes);
            const T* row = static_cast<const T*>(tile.rows[i]);
            const int32_t slot = static_cast<int32_t>(tile.first + i);
            S total = 0;
            int64_t j = 0;
            if (!where) {
                typename E::Vector partial{};
                for (; j + L <= tile.width; j += L) partial += E::load(row + j) * E::load(other + j);
                for (int l = 0; l < L; ++l) total += partial[l];
            }
            for (; j < tile.width; ++j)
                if (!where || where[j] == slot) total += E::get(row + j) * E::get(other + j);
            static_cast<S*>(dots)[i] = total;
        }
    });
}

void store(Element element, const void* accumulator, double scale, int64_t width, void* out) {
    with_element(element, [&]<class E>(E) {
        using S = typename E::Sum;
        using T = typename E::Type;
        constexpr int L = 64 / sizeof(S);
        const S* from = static_cast<const S*>(accumulator);
        const S factor = static_cast<S>(scale);
        T* to = static_cast<T*>(out);
        int64_t j = 0;
        for (; j + L <= width; j += L) E::store(to + j, load_as<typename E::Vector>(from + j) * factor);
        for (; j < width; ++j) E::put(to + j, from[j] * factor);
    });
}

#define HEADRACE_STRING(name) #name
#define HEADRACE_NAME(name) HEADRACE_STRING(name)

}  // namespace

extern const VectorTable table;
const VectorTable table{HEADRACE_NAME(HEADRACE_LEVEL), draw, rank, sum, max, max_gradient, dot, store, dropout,
                        attend_scratch, attend, attend_row_gradient, attend_column_gradient};

}  // namespace headrace::HEADRACE_LEVEL
