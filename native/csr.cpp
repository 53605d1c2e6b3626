#include "csr.h"

#include <numeric>
#include <type_traits>
#include <vector>

#include "common.h"

namespace headrace {
namespace {

struct Nothing {};  // stands for a position that nobody asked for

template <class Out, class P>
struct Record {
    uint32_t row;  // within its bucket
    Out column;
    [[no_unique_address]] P position;
};

// Sources of entries: `visit(begin, end, emit)` calls emit(row, column, position) in order.

template <class In>
struct EdgeList {
    const In *src, *dst;
    int64_t edges, nodes;
    bool undirected;
    SelfLoops self_loops;
    const uint8_t* has_loop;  // when self loops are added: the nodes that need none

    int64_t items() const { return edges + (self_loops == SelfLoops::add ? nodes : 0); }
    int64_t cut_at(int64_t parts, int64_t i) const { return cut(items(), parts, i); }
    template <class Emit>
    void visit(int64_t begin, int64_t end, Emit emit) const {
        const int64_t stop = std::min(end, edges);
        for (int64_t k = begin; k < stop; ++k) {
            const In u = src[k], v = dst[k];
            if (u == v) {
                if (self_loops != SelfLoops::drop) emit(v, u, k);
                continue;
            }
            emit(v, u, k);
            if (undirected) emit(u, v, k);
        }
        for (int64_t k = std::max(begin, edges); k < end; ++k)
            if (const int64_t v = k - edges; !has_loop[v]) emit(v, v, int64_t{-1});
    }
};

template <class Id>
struct Transposed {
    const int64_t* indptr;
    const Id* indices;
    int64_t rows;

    int64_t items() const { return rows; }
    int64_t cut_at(int64_t parts, int64_t i) const {  // equal entries, whole rows
        const int64_t target = cut(indptr[rows], parts, i);
        return i == parts ? rows : std::lower_bound(indptr, indptr + rows, target) - indptr;
    }
    template <class Emit>
    void visit(int64_t begin, int64_t end, Emit emit) const {
        for (int64_t v = begin; v < end; ++v)
            for (int64_t e = indptr[v]; e < indptr[v + 1]; ++e) emit(indices[e], v, e);
    }
};

// Entries are first dealt into buckets of neighboring rows, then sorted within each bucket, which fits a cache.
// Stable: each thread deals a contiguous piece of the input, and pieces keep their order within a bucket.
template <class Out, class P, class Source>
Csr<Out, P> sort_rows_of(const Source& source, int64_t rows, int64_t expected, bool positions, int threads) {
    threads = useful_threads(threads, expected, 1 << 14);
    int shift = 0;
    while ((rows >> shift) > std::clamp<int64_t>(expected >> 13, 1, 1024)) ++shift;
    const int64_t buckets = (rows >> shift) + 1;

    std::vector<int64_t> start(static_cast<size_t>(buckets * threads + 1), 0);
    const auto slot = [&](int64_t bucket, int thread) -> int64_t& { return start[bucket * threads + thread]; };
    FirstError error;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int t = 0; t < threads; ++t)
        error.guard([&] {
            std::vector<int64_t> count(static_cast<size_t>(buckets), 0);
            source.visit(source.cut_at(threads, t), source.cut_at(threads, t + 1),
                         [&](int64_t row, int64_t, int64_t) { ++count[row >> shift]; });
            for (int64_t b = 0; b < buckets; ++b) slot(b, t) = count[b];
        });
    error.rethrow();
    std::exclusive_scan(start.begin(), start.end(), start.begin(), int64_t{0});
    const int64_t entries = start.back();

    Array<Record<Out, P>> dealt(entries);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int t = 0; t < threads; ++t)
        error.guard([&] {
            std::vector<int64_t> next(static_cast<size_t>(buckets));
            for (int64_t b = 0; b < buckets; ++b) next[b] = slot(b, t);
            const int64_t mask = (int64_t{1} << shift) - 1;
            source.visit(source.cut_at(threads, t), source.cut_at(threads, t + 1),
                         [&](int64_t row, int64_t column, [[maybe_unused]] int64_t position) {
                             Record<Out, P>& r = dealt[next[row >> shift]++];
                             r.row = static_cast<uint32_t>(row & mask);
                             r.column = static_cast<Out>(column);
                             if constexpr (!std::is_empty_v<P>) r.position = static_cast<P>(position);
                         });
        });
    error.rethrow();

    Csr<Out, P> csr{Array<int64_t>(rows + 1), Array<Out>(entries), Array<P>(positions ? entries : 0)};
#pragma omp parallel num_threads(threads)
    {
        std::vector<int64_t> next;
        error.guard([&] { next.resize(static_cast<size_t>(int64_t{1} << shift) + 1); });
#pragma omp for schedule(dynamic, 1)
        for (int64_t b = 0; b < buckets; ++b) {
            if (error.any()) continue;
            const int64_t first = b << shift, last = std::min(rows, (b + 1) << shift);
            const int64_t begin = slot(b, 0), end = b + 1 < buckets ? slot(b + 1, 0) : entries;
            std::fill(next.begin(), next.end(), 0);
            for (int64_t e = begin; e < end; ++e) ++next[dealt[e].row + 1];
            next[0] = begin;
            for (int64_t r = 0; r < last - first; ++r) {
                next[r + 1] += next[r];
                csr.indptr[first + r] = next[r];
            }
            for (int64_t e = begin; e < end; ++e) {
                const int64_t at = next[dealt[e].row]++;
                csr.indices[at] = dealt[e].column;
                if constexpr (!std::is_empty_v<P>) csr.position[at] = dealt[e].position;
            }
        }
    }
    error.rethrow();
    csr.indptr[rows] = entries;
    return csr;
}

// Each row by column, the first of equal entries kept.
template <class Out, class P>
Csr<Out, P> without_duplicates(Csr<Out, P> csr, int64_t rows, int threads) {
    struct Item {
        Out column;
        [[no_unique_address]] P position;
    };
    threads = useful_threads(threads, csr.indices.size(), 1 << 14);
    Csr<Out, P> unique{Array<int64_t>(rows + 1), {}, {}};
    FirstError error;
#pragma omp parallel num_threads(threads)
    {
        std::vector<Item> row;
#pragma omp for schedule(dynamic, 512)
        for (int64_t v = 0; v < rows; ++v) {
            if (error.any()) continue;
            const int64_t begin = csr.indptr[v], end = csr.indptr[v + 1];
            int64_t kept = 0;
            if constexpr (std::is_empty_v<P>) {
                std::sort(&csr.indices[begin], &csr.indices[end]);
                kept = std::unique(&csr.indices[begin], &csr.indices[end]) - &csr.indices[begin];
            } else {
                error.guard([&] { row.resize(static_cast<size_t>(end - begin)); });
                if (error.any()) continue;
                for (int64_t e = begin; e < end; ++e) row[e - begin] = {csr.indices[e], csr.position[e]};
                std::stable_sort(row.begin(), row.end(),  // in place, more slowly, where there is no memory
                                 [](const Item& a, const Item& b) { return a.column < b.column; });
                for (const Item& item : row)
                    if (kept == 0 || csr.indices[begin + kept - 1] != item.column) {
                        csr.indices[begin + kept] = item.column;
                        csr.position[begin + kept] = item.position;
                        ++kept;
                    }
            }
            unique.indptr[v + 1] = kept;
        }
    }
    error.rethrow();
    unique.indptr[0] = 0;
    std::inclusive_scan(&unique.indptr[0], &unique.indptr[0] + rows + 1, &unique.indptr[0]);
    const int64_t entries = unique.indptr[rows];
    unique.indices = Array<Out>(entries);
    if (csr.position.size()) unique.position = Array<P>(entries);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t v = 0; v < rows; ++v) {
        const int64_t from = csr.indptr[v], to = unique.indptr[v], n = unique.indptr[v + 1] - to;
        std::copy_n(csr.indices.data() + from, n, unique.indices.data() + to);
        if (csr.position.size()) std::copy_n(csr.position.data() + from, n, unique.position.data() + to);
    }
    return unique;
}

template <class Out, class Position, class P>
Csr<Out, Position> with_positions(Csr<Out, P> csr) {
    if constexpr (std::is_same_v<P, Position>)
        return csr;
    else
        return {std::move(csr.indptr), std::move(csr.indices), {}};
}

}  // namespace

template <class Id>
IdRange<Id> id_range(const Id* ids, int64_t count, int threads) {
    Id least = 0, most = -1;
    if (count) least = most = ids[0];
    threads = useful_threads(threads, count, 1 << 16);
#pragma omp parallel for schedule(static) num_threads(threads) reduction(min : least) reduction(max : most)
    for (int64_t i = 0; i < count; ++i) {
        least = std::min(least, ids[i]);
        most = std::max(most, ids[i]);
    }
    return {least, most};
}

template <class In, class Out, class Position>
Csr<Out, Position> build_csr(const In* src, const In* dst, int64_t edges, const BuildOptions& options) {
    for (const In* ids : {src, dst}) {
        const IdRange<In> range = id_range(ids, edges, options.threads);
        require(edges == 0 || (range.least >= 0 && range.most < options.num_nodes), "node id out of range");
    }
    Array<uint8_t> has_loop;
    if (options.self_loops == SelfLoops::add) {
        has_loop = Array<uint8_t>(options.num_nodes);
        std::fill_n(has_loop.data(), options.num_nodes, uint8_t{0});
        for (int64_t k = 0; k < edges; ++k)
            if (src[k] == dst[k]) has_loop[src[k]] = 1;
    }
    const EdgeList<In> list{src, dst, edges, options.num_nodes, options.undirected, options.self_loops,
                            has_loop.data()};
    const int64_t expected = list.items() * (options.undirected ? 2 : 1);
    const auto build = [&]<class P>(P) {
        auto csr = sort_rows_of<Out, P>(list, options.num_nodes, expected, options.positions, options.threads);
        if (options.deduplicate) csr = without_duplicates(std::move(csr), options.num_nodes, options.threads);
        return with_positions<Out, Position>(std::move(csr));
    };
    return options.positions ? build(Position{}) : build(Nothing{});
}

template <class Id, class Position>
Csr<Id, Position> transpose_csr(const int64_t* indptr, const Id* indices, int64_t rows, int64_t columns,
                                bool positions, int threads) {
    const Transposed<Id> source{indptr, indices, rows};
    const auto build = [&]<class P>(P) {
        return with_positions<Id, Position>(
            sort_rows_of<Id, P>(source, columns, indptr[rows], positions, threads));
    };
    return positions ? build(Position{}) : build(Nothing{});
}

template <class Id>
void check_csr(const int64_t* indptr, const Id* indices, int64_t rows, int64_t entries, int64_t columns,
               int threads) {
    require(rows >= 0, "indptr must hold at least one element");
    require(indptr[0] == 0, "indptr must begin with 0");
    require(indptr[rows] == entries, "indptr must end with the number of indices");
    bool rising = true;
    const int workers = useful_threads(threads, rows, 1 << 16);
#pragma omp parallel for schedule(static) num_threads(workers) reduction(&& : rising)
    for (int64_t v = 0; v < rows; ++v) rising = rising && indptr[v] <= indptr[v + 1];
    require(rising, "indptr must not decrease");
    const IdRange<Id> range = id_range(indices, entries, threads);
    require(entries == 0 || (range.least >= 0 && range.most < columns), "index out of range");
}

template <class Id>
void expand_csr(const int64_t* indptr, const Id* indices, int64_t rows, int64_t* columns, int64_t* row_of, int threads) {
    threads = useful_threads(threads, indptr[rows], 1 << 16);
    const Transposed<Id> source{indptr, indices, rows};
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; ++t)
        source.visit(source.cut_at(threads, t), source.cut_at(threads, t + 1), [&](int64_t column, int64_t row, int64_t e) {
            columns[e] = column;
            row_of[e] = row;
        });
}

#define HEADRACE_IDS(Id)                                                                             \
    template IdRange<Id> id_range(const Id*, int64_t, int);                                          \
    template void expand_csr(const int64_t*, const Id*, int64_t, int64_t*, int64_t*, int);           \
    template void check_csr(const int64_t*, const Id*, int64_t, int64_t, int64_t, int);              \
    template Csr<Id, int32_t> transpose_csr(const int64_t*, const Id*, int64_t, int64_t, bool, int); \
    template Csr<Id, int64_t> transpose_csr(const int64_t*, const Id*, int64_t, int64_t, bool, int); \
    template Csr<int32_t, int32_t> build_csr(const Id*, const Id*, int64_t, const BuildOptions&);    \
    template Csr<int32_t, int64_t> build_csr(const Id*, const Id*, int64_t, const BuildOptions&);    \
    template Csr<int64_t, int32_t> build_csr(const Id*, const Id*, int64_t, const BuildOptions&);    \
    template Csr<int64_t, int64_t> build_csr(const Id*, const Id*, int64_t, const BuildOptions&);
HEADRACE_IDS(int32_t)
HEADRACE_IDS(int64_t)
#undef HEADRACE_IDS

}  // namespace headrace
