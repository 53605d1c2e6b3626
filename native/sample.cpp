#include "sample.h"

#include <cstring>

#include "common.h"
#include "memory.h"
#include "philox.h"
#include "table.h"
#include "vector.h"

namespace headrace {
namespace {

// One thread's stretch of frontier rows: positions are drawn for group g while the neighbours of group g - 1 and the
// table entries of group g - 2 are on their way from memory.
template <class Id>
struct Stretch {
    struct Group {
        std::vector<int64_t> positions;
        std::vector<Id> nodes;
        int64_t count = 0, edge = 0;
    };
    Group ring[3];
    std::vector<int64_t> scratch;
    DrawRow rows[kDrawGroup];
};

}  // namespace

template <class Id>
struct Sampler<Id>::Workspace {
    StampTable<Id> stamps;
    HashTable<Id> hash;
    Array<int64_t> begin;  // of the frontier's rows
    Array<uint32_t> degree;
    std::vector<Stretch<Id>> stretches;
    std::vector<Id> raw;          // many threads: neighbours before relabelling
    std::vector<uint8_t> is_new;  // and whether each is the first of its node

    int64_t bytes() const {
        return stamps.bytes() + hash.bytes() +
               begin.size() * 12 + static_cast<int64_t>(raw.capacity() * sizeof(Id) + is_new.capacity());
    }
    void reserve_rows(int64_t rows) {
        if (begin.size() >= rows) return;
        begin.reset();  // freed before it is made larger
        degree.reset();
        begin = Array<int64_t>(rows + rows / 16);
        degree = Array<uint32_t>(rows + rows / 16);
    }
};

template <class Id>
Sampler<Id>::Sampler(const int64_t* indptr, const Id* indices, int64_t nodes, int64_t edges,
                     std::vector<int64_t> fanouts, bool replace, bool hash)
    : indptr_(indptr), indices_(indices), nodes_(nodes), edges_(edges), fanouts_(std::move(fanouts)),
      replace_(replace), hash_(hash) {
    require(!fanouts_.empty(), "fanouts must name at least one hop");
    for (int64_t k : fanouts_) require(k >= -1 && k < kMost, "a fanout must be -1 (all) or at least 0");
}

template <class Id>
Sampler<Id>::~Sampler() = default;

template <class Id>
int64_t Sampler<Id>::workspace_bytes() const {
    std::lock_guard lock(mutex_);
    int64_t total = 0;
    for (const Workspace* work : all_) total += work->bytes();
    return total;
}

template <class Id>
SampleResult Sampler<Id>::sample(const SampleRequest& request, const std::shared_ptr<Pool>& pool) {
    std::unique_ptr<Workspace> work;
    {
        std::lock_guard lock(mutex_);
        if (idle_.empty()) {
            work = std::make_unique<Workspace>();
            all_.push_back(work.get());
        } else {
            work = std::move(idle_.back());
            idle_.pop_back();
        }
    }
    struct GiveBack {  // also when an error leaves
        Sampler& sampler;
        std::unique_ptr<Workspace>& work;
        ~GiveBack() {
            std::lock_guard lock(sampler.mutex_);
            sampler.idle_.push_back(std::move(work));
        }
    } give_back{*this, work};
    return hash_ ? expand(request, pool, *work, work->hash) : expand(request, pool, *work, work->stamps);
}

template <class Id>
template <class Table>
SampleResult Sampler<Id>::expand(const SampleRequest& request, const std::shared_ptr<Pool>& pool, Workspace& work,
                                 Table& table) {
    const VectorTable& vector = vector_table();
    const PhiloxKey key = stream_key(request.seed, request.epoch, request.batch, Purpose::sample);
    const int threads = std::max(request.threads, 1);
    require(request.num_seeds < kMost, "too many seeds for one sample");
    for (int64_t i = 0; i < request.num_seeds; ++i)
        require(request.seeds[i] >= 0 && request.seeds[i] < nodes_, "seed out of range");

    SampleResult out;
    const int64_t seeds = request.num_seeds;
    out.nodes = Buffer(pool, std::max<int64_t>(seeds, 1) * sizeof(Id));
    out.indptr = Buffer(pool, (seeds + 1) * sizeof(int64_t));
    out.indices = Buffer(pool, 64);
    if (request.positions) out.positions = Buffer(pool, 64);

    int64_t count = seeds, edge_count = 0, begin = 0;
    table.begin(nodes_);
    struct End {  // ids handed out so far must count as stale for the next batch, also after an error
        Table& table;
        const int64_t& count;
        ~End() { table.end(std::max<int64_t>(count, 1)); }
    } end_of_batch{table, count};
    table.reserve(nullptr, 0, seeds);
    for (int64_t i = 0; i < seeds; ++i) {
        const Id node = static_cast<Id>(request.seeds[i]);
        out.nodes.as<Id>()[i] = node;
        table.find_or_add(node, static_cast<int32_t>(i));  // a repeated seed keeps its first id
    }
    out.indptr.as<int64_t>()[0] = 0;
    out.node_counts.push_back(seeds);

    for (size_t hop = 0; hop < fanouts_.size(); ++hop) {
        const int64_t end = count, frontier = end - begin, fanout = fanouts_[hop];
        const Id* nodes = out.nodes.as<Id>();
        FirstError error;

        // How many neighbours each frontier node takes.
        work.reserve_rows(frontier);
        out.indptr.grow((end + 1) * sizeof(int64_t), (begin + 1) * sizeof(int64_t));
        int64_t* indptr = out.indptr.as<int64_t>();
        const int workers = useful_threads(threads, frontier, 1024);
#pragma omp parallel for schedule(static) num_threads(workers) if (workers > 1)
        for (int64_t i = 0; i < frontier; ++i) {
            if (i + 32 < frontier) prefetch(indptr_ + nodes[begin + i + 32]);
            const int64_t node = static_cast<int64_t>(nodes[begin + i]);
            const int64_t first = indptr_[node], last = indptr_[node + 1];
            if (first < 0 || last < first || last > edges_ || last - first > UINT32_MAX) {
                error.set("the graph's indptr is corrupt");
                continue;
            }
            const int64_t degree = last - first;
            work.begin[i] = first;
            work.degree[i] = static_cast<uint32_t>(degree);
            indptr[begin + i + 1] = fanout < 0 ? degree : replace_ ? (degree ? fanout : 0) : std::min(degree, fanout);
        }
        error.rethrow();
        for (int64_t i = begin; i < end; ++i) indptr[i + 1] += indptr[i];
        const int64_t added = indptr[end] - edge_count;
        require(indptr[end] < StampTable<Id>::kClaims && count + added < StampTable<Id>::kClaims,
                "the sample is too large: use smaller fanouts or fewer seeds");

        out.indices.grow((edge_count + added) * sizeof(int32_t), edge_count * sizeof(int32_t));
        if (request.positions)
            out.positions.grow((edge_count + added) * sizeof(int64_t), edge_count * sizeof(int64_t));
        out.nodes.grow((count + added) * sizeof(Id), count * sizeof(Id));
        Id* all_nodes = out.nodes.as<Id>();
        int32_t* indices = out.indices.as<int32_t>();
        int64_t* positions = request.positions ? out.positions.as<int64_t>() : nullptr;

        // Walks frontier rows [from, to), handing each group's neighbours (global ids) to `relabel`, in order.
        const auto walk = [&](Stretch<Id>& s, int64_t from, int64_t to, auto&& look_up, auto&& relabel) {
            for (auto& group : s.ring) group.count = 0;
            int64_t next = from;
            for (int64_t g = 0, draining = 0; draining < 3; ++g) {
                auto& drawn = s.ring[g % 3];
                drawn.count = 0;
                if (next >= to) {
                    ++draining;
                } else {  // draw, and request the neighbours
                    int64_t rows = 0, take = 0, most = 0;
                    drawn.edge = indptr[begin + next];
                    while (next + rows < to && rows < kDrawGroup && (rows == 0 || take < 512)) {
                        const int64_t i = next + rows, t = indptr[begin + i + 1] - indptr[begin + i];
                        s.rows[rows++] = {static_cast<uint64_t>(all_nodes[begin + i]), work.begin[i], work.degree[i], t};
                        take += t;
                        if (replace_ || t < work.degree[i]) most = std::max(most, t);
                    }
                    if (static_cast<int64_t>(s.scratch.size()) < draw_scratch(most))
                        s.scratch.resize(static_cast<size_t>(draw_scratch(most)));
                    if (static_cast<int64_t>(drawn.positions.size()) < take) {
                        drawn.positions.resize(static_cast<size_t>(take));
                        drawn.nodes.resize(static_cast<size_t>(take));
                    }
                    vector.draw(key, static_cast<uint32_t>(hop), replace_ && fanout >= 0, s.rows, rows,
                                s.scratch.data(), drawn.positions.data());
                    for (int64_t q = 0; q < take; ++q) prefetch(indices_ + drawn.positions[q]);
                    drawn.count = take;
                    next += rows;
                }
                if (auto& found = s.ring[(g + 2) % 3]; found.count) {  // read the neighbours, request their ids
                    for (int64_t q = 0; q < found.count; ++q) {
                        const Id node = indices_[found.positions[q]];
                        if (node < 0 || static_cast<int64_t>(node) >= nodes_) {
                            error.set("the graph holds an index out of range");
                            return;
                        }
                        found.nodes[q] = node;
                        look_up(node);
                    }
                    if (positions) std::copy_n(found.positions.data(), found.count, positions + found.edge);
                }
                if (auto& known = s.ring[(g + 1) % 3]; known.count) relabel(known.nodes.data(), known.count, known.edge);
            }
        };

        const int parts = useful_threads(threads, added, 4096);
        if (static_cast<int>(work.stretches.size()) < parts) work.stretches.resize(static_cast<size_t>(parts));
        const auto add = [&](const Id* group, int64_t n, int64_t edge) {
            table.reserve(all_nodes, count, n);
            for (int64_t q = 0; q < n; ++q) {
                const int32_t local = table.find_or_add(group[q], static_cast<int32_t>(count));
                all_nodes[count] = group[q];  // overwritten unless it is new
                count += local == count;
                indices[edge + q] = local;
            }
        };
        if (parts == 1) {
            walk(work.stretches[0], 0, frontier, [&](Id node) { table.prefetch(node); }, add);
            error.rethrow();
        } else {
            work.raw.resize(static_cast<size_t>(added));
            Id* raw = work.raw.data();
#pragma omp parallel for schedule(static, 1) num_threads(parts)
            for (int p = 0; p < parts; ++p) {
                const auto row_at = [&](int64_t i) {
                    const int64_t target = edge_count + cut(added, parts, i);
                    return std::lower_bound(indptr + begin, indptr + end, target) - (indptr + begin);
                };
                walk(work.stretches[p], p ? row_at(p) : 0, p + 1 < parts ? row_at(p + 1) : frontier, [](Id) {},
                     [&](const Id* group, int64_t n, int64_t edge) { std::copy_n(group, n, raw + edge - edge_count); });
            }
            error.rethrow();
            if constexpr (std::is_same_v<Table, StampTable<Id>>) {
                // First appearances: the least position claims a node, then ids follow from a prefix sum over them.
                work.is_new.resize(static_cast<size_t>(added));
                std::vector<int64_t> fresh(static_cast<size_t>(parts) + 1, 0);
#pragma omp parallel num_threads(parts)
                {
#pragma omp for schedule(static, 1)
                    for (int p = 0; p < parts; ++p)
                        for (int64_t e = cut(added, parts, p), stop = cut(added, parts, p + 1); e < stop; ++e) {
                            if (e + 32 < stop) table.prefetch(raw[e + 32]);
                            table.claim(raw[e], static_cast<int32_t>(e));
                        }
#pragma omp for schedule(static, 1)
                    for (int p = 0; p < parts; ++p)
                        for (int64_t e = cut(added, parts, p), stop = cut(added, parts, p + 1); e < stop; ++e) {
                            if (e + 32 < stop) table.prefetch(raw[e + 32]);
                            work.is_new[e] = table.claimed(raw[e], static_cast<int32_t>(e));
                            fresh[p + 1] += work.is_new[e];
                        }
#pragma omp single
                    for (int p = 0; p < parts; ++p) fresh[p + 1] += fresh[p];
#pragma omp for schedule(static, 1)
                    for (int p = 0; p < parts; ++p) {
                        int64_t local = count + fresh[p];
                        for (int64_t e = cut(added, parts, p), stop = cut(added, parts, p + 1); e < stop; ++e)
                            if (work.is_new[e]) {
                                all_nodes[local] = raw[e];
                                table.set(raw[e], static_cast<int32_t>(local++));
                            }
                    }
#pragma omp for schedule(static, 1)
                    for (int p = 0; p < parts; ++p)
                        for (int64_t e = cut(added, parts, p), stop = cut(added, parts, p + 1); e < stop; ++e) {
                            if (e + 32 < stop) table.prefetch(raw[e + 32]);
                            indices[edge_count + e] = table.get(raw[e]);
                        }
                }
                count += fresh[static_cast<size_t>(parts)];
            } else {
                for (int64_t e = 0; e < added; e += 512) {
                    const int64_t n = std::min<int64_t>(512, added - e);
                    for (int64_t q = 0; q < n; ++q) table.prefetch(raw[e + q]);
                    add(raw + e, n, edge_count + e);
                }
            }
        }
        edge_count += added;
        out.node_counts.push_back(count - end);
        out.edge_counts.push_back(added);
        begin = end;
    }
    return out;
}

template class Sampler<int32_t>;
template class Sampler<int64_t>;

}  // namespace headrace
