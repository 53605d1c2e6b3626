// From the rows that a tile of entries names to a table of numbers per entry and head, and back (vector_heads.h says what those
// are). For vector_*.cpp alone.
#pragma once

#include "vector_heads.h"

namespace headrace::HEADRACE_LEVEL {
namespace {

// Asks for rows before they are needed: `bytes` of row indices[e] of an array, for one entry e after the other.
class Ahead {
public:
    Ahead(const Ids& indices, int64_t count, int64_t from, const void* rows, int64_t bytes)
        : indices_(indices), count_(count), next_(from < 0 ? 0 : from), rows_(static_cast<const char*>(rows)), bytes_(bytes) {}
    HEADRACE_INLINE void reach(int64_t e) {
        const int64_t limit = e + kAhead < count_ ? e + kAhead : count_;
        for (; next_ < limit; ++next_) prefetch_row(unchecked(rows_, indices_[next_], bytes_), bytes_);
    }

private:
    const Ids indices_;
    const int64_t count_;
    int64_t next_;
    const char* rows_;
    const int64_t bytes_;
};

// What a loop over the entries from `begin` on calls as it reaches each.
struct Request {
    int64_t begin = 0;
    Ahead *ahead = nullptr, *also = nullptr;
    HEADRACE_INLINE void operator()(int64_t k) const {
        if (ahead) ahead->reach(begin + k);
        if (also) also->reach(begin + k);
    }
};

// The sum over one head's columns of term(elements, column), in the lanes of a short vector: `across` adds those. Columns are taken
// in chunks, the last of which is moved back so that it ends with the head. C: the channels, if they are worth knowing in advance.
template <class E, class Chunk, int C, class Term>
HEADRACE_INLINE typename Heads<E>::Quarter head_sum(const Heads<E>& in, const typename E::Type* row, int64_t head, Term term) {
    constexpr int64_t N = sizeof(Chunk) / sizeof(typename E::Sum);
    const int64_t channels = C ? C : in.channels, column = head * channels;
    row += column;
    Chunk sum = term(load_lanes<E, Chunk>(row), column);
    int64_t j = N;
    for (; j + N <= channels; j += N) sum += term(load_lanes<E, Chunk>(row + j), column + j);
    if constexpr (N == 1) {
        return {{typename Heads<E>::Quarter::Part{sum}}};
    } else {
        if (!C && j < channels) {
            j = channels - N;
            sum += masked(term(load_lanes<E, Chunk>(row + j), column + j), in.rest);
        }
        if constexpr (N == Heads<E>::L) {
            const auto half = low(sum) + high(sum);
            return low(half) + high(half);
        } else if constexpr (N == Heads<E>::L / 2) {
            return low(sum) + high(sum);
        } else {
            return sum;
        }
    }
}

template <class E, class Chunk, int C, class Term>
__attribute__((noinline)) void head_sums_of(const Heads<E>& in, const typename E::Type* const* rows, int64_t count, Request request,
                                            Term term, typename E::Sum* table) {
    using Quarter = typename Heads<E>::Quarter;
    constexpr int64_t Q = Heads<E>::Q;
    Quarter part[Q];
    if (in.padded >= Q) {
        for (int64_t h = 0; h < in.padded; h += Q)  // a few heads at a time: faster than row by row where rows are long
            for (int64_t k = 0; k < count; ++k) {
                if (h == 0) request(k);
                for (int64_t i = 0; i < Q; ++i)
                    part[i] = h + i < in.heads ? head_sum<E, Chunk, C>(in, rows[k], h + i, term) : Quarter{};
                across(part).store(table + k * in.padded + h);
            }
    } else {  // so few heads that several rows fill a short vector
        for (int64_t k = 0, h = 0, at = 0; k < count; at += Q) {
            for (int64_t i = 0; i < Q; ++i) {
                if (h == 0 && k < count) request(k);
                part[i] = k < count ? head_sum<E, Chunk, C>(in, rows[k], h, term) : Quarter{};
                if (++h == in.padded) h = 0, ++k;
            }
            across(part).store(table + at);
        }
    }
    in.clear_rest(table, count);
}

// table[k, h] = the sum over the columns of head h of term(elements of rows[k], column).
template <class E, class Term>
inline void head_sums(const Heads<E>& in, const typename E::Type* const* rows, int64_t count, Request request, Term term,
                      typename E::Sum* table) {
    using H = Heads<E>;
    const auto run = [&]<class Chunk, int C>(Chunk, Constant<C>) {
        head_sums_of<E, Chunk, C>(in, rows, count, request, term, table);
    };
    if (in.channels == 2 * H::L) return run(typename H::V{}, Constant<2 * H::L>{});
    if (in.channels == H::L) return run(typename H::V{}, Constant<H::L>{});
    if (in.channels == H::L / 2) return run(typename H::Half{}, Constant<H::L / 2>{});
    if (in.channels >= H::L) return run(typename H::V{}, Constant<0>{});
    if (in.channels >= H::L / 2) return run(typename H::Half{}, Constant<0>{});
    if (in.channels >= H::Q) return run(typename H::Quarter{}, Constant<0>{});
    run(typename E::Sum{}, Constant<0>{});
}

template <class E, int N, Find find, bool two, class Add>
__attribute__((noinline)) void add_slots(const Heads<E>& in, int64_t slot, const typename E::Type* const* rows, int64_t count,
                                         const typename E::Sum* table, Request request, Add add, typename Heads<E>::V* sums,
                                         typename Heads<E>::V* more) {
    using V = typename Heads<E>::V;
    Spread<E, find> spread[N];
    V sum[N], other[N];
    for (int v = 0; v < N; ++v) {
        spread[v] = Spread<E, find>(in, slot + v);
        sum[v] = sums[slot + v];
        if (two) other[v] = more[slot + v];
    }
    const int64_t column = in.column[slot], padded = in.padded;
    for (int64_t k = 0; k < count; ++k, table += padded) {
        request(k);
        const typename E::Type* row = rows[k] + column;
        for (int v = 0; v < N; ++v)
            add(load_lanes<E, V>(row + v * V::kLanes), column + v * V::kLanes, spread[v](table), sum[v], other[v]);
    }
    for (int v = 0; v < N; ++v) {
        sums[slot + v] = sum[v];
        if (two) more[slot + v] = other[v];
    }
}

// For each slot add(elements of rows[k], column, table[k, heads of the columns], sums[slot], more[slot]), entries in order.
template <bool two, class E, class Add>
inline void add_rows(const Heads<E>& in, const typename E::Type* const* rows, int64_t count, const typename E::Sum* table,
                     Request request, Add add, typename Heads<E>::V* sums, typename Heads<E>::V* more) {
    if (!in.regular) {
        const Spread<E, Find::any> spread(in, 0);
        for (int64_t k = 0; k < count; ++k) {
            request(k);
            add(load_narrow(in, rows[k]), 0, spread(table + k * in.padded), *sums, *more);
        }
        return;
    }
    constexpr int kMost = kRegister / (two ? 16 : 8);  // slots at a time: half of the registers hold sums
    constexpr Find kFast = kRegister == 64 ? Find::permute : Find::blocks;
    const bool fast = find_of(in) == kFast;
    int64_t slot = 0;
    const auto pass = [&]<int N>(Constant<N>) {
        if (fast)
            add_slots<E, N, kFast, two>(in, slot, rows, count, table, request, add, sums, more);
        else
            add_slots<E, N, Find::any, two>(in, slot, rows, count, table, request, add, sums, more);
        request = Request{};  // rows were asked for in the first pass over them, and lie in the cache after it
        slot += N;
    };
    while (slot + kMost <= in.regular) pass(Constant<kMost>{});
    if (kMost > 4 && slot + 4 <= in.regular) pass(Constant<4>{});
    if (kMost > 2 && slot + 2 <= in.regular) pass(Constant<2>{});
    while (slot < in.slots) pass(Constant<1>{});  // the one that was moved back among them
}

// table[k] = the `heads` numbers at numbers + node[k] * stride.
template <class S>
inline void look_up(const S* numbers, int64_t stride, int64_t heads, const int64_t* node, int64_t count, int64_t padded,
                    Request request, S* table) {
    const auto copy = [&]<int N>(Constant<N>) {  // of a known size: no loop, and no call
        for (int64_t k = 0; k < count; ++k) {
            request(k);
            __builtin_memcpy(table + k * N, numbers + node[k] * stride, N * sizeof(S));
        }
    };
    if (heads == padded) switch (heads) {
            case 1: return copy(Constant<1>{});
            case 2: return copy(Constant<2>{});
            case 4: return copy(Constant<4>{});
            case 8: return copy(Constant<8>{});
            case 16: return copy(Constant<16>{});
        }
    for (int64_t k = 0; k < count; ++k) {
        request(k);
        for (int64_t h = 0; h < heads; ++h) table[k * padded + h] = numbers[node[k] * stride + h];
    }
}

}  // namespace
}  // namespace headrace::HEADRACE_LEVEL
